"""The command line: parsing and printing only; what is done is done by the layers below."""
