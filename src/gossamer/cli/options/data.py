"""The options of ``gossamer data``."""

from __future__ import annotations

from gossamer.cli.parser import Parser, add_command, add_data_dir, set_run


def add_data(parser: Parser) -> None:
    """Give the command its three parts."""
    parts = parser.add_subparsers(metavar="list|get|show", required=True, parser_class=Parser)
    listing = add_command(parts, "list", "list the data sets known by name")
    set_run(listing, "data", "run_list")
    get = add_command(parts, "get", "download a data set and check it")
    get.add_argument("name", metavar="NAME", help="see gossamer data list")
    add_data_dir(get)
    get.add_argument("--mirror", metavar="URL", help="another address with the same files")
    set_run(get, "data", "run_get")
    show = add_command(parts, "show", "load a data set and say what is in it")
    show.add_argument("name", metavar="NAME", help="a name, a .npz file or a table")
    add_data_dir(show)
    show.add_argument("--target", metavar="COLUMN", help="the column to predict, of a table")
    show.add_argument("--task", help="classification or regression; the data decide if not given")
    set_run(show, "data", "run_show")
