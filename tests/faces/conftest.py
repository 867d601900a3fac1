"""Trainers of others import torchvision where ``make zoo`` has installed it."""

from zoo.torchvision_schemas import declare

declare()
