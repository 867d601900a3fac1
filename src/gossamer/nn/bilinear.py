"""``nn.Bilinear`` as a linear map of the products of its inputs."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from gossamer.nn.split import Split, linear_of, weights_and_biases
from gossamer.nn.twins import parameter_of


class SplitBilinear(Split, nn.Bilinear):
    """``nn.Bilinear`` whose weight is a layer, ``product``, of all products x₁ᵢ x₂ⱼ."""

    torch_class = nn.Bilinear
    reshapes = True
    product: nn.Linear

    @classmethod
    def taken(cls, module: nn.Module) -> set[str]:
        """``weight``, and ``bias`` if there is one."""
        return {name for name, p in module._parameters.items() if p is not None or name == "weight"}

    @classmethod
    def layers_of(cls, module: nn.Module) -> dict[str, nn.Linear]:
        """The weight as a matrix."""
        weight = parameter_of(module)
        matrix = nn.Parameter(weight.detach().flatten(1), requires_grad=weight.requires_grad)
        return {"product": linear_of(matrix, module._parameters.get("bias"))}

    def parameters_from(self, layers: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        """The weight with three axes."""
        matrix, bias = weights_and_biases(layers)["product"]
        shape = (self.out_features, self.in1_features, self.in2_features)
        cube = nn.Parameter(matrix.detach().view(shape), requires_grad=matrix.requires_grad)
        return {"weight": cube} if bias is None else {"weight": cube, "bias": bias}

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """``[..., in1]`` and ``[..., in2]`` to ``[..., out]``."""
        products = (input1.unsqueeze(-1) * input2.unsqueeze(-2)).flatten(-2)
        y: Tensor = self.product(products)
        return y
