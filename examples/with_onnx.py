"""The encoder of a run as an ONNX file: `python examples/with_onnx.py runs/first`, after an `ldreg pretrain`."""

import sys

import numpy
import onnxruntime

from ldreg.integrations.onnx import export_encoder

made = export_encoder(sys.argv[1], "encoder.onnx", normalize=True)  # takes images from 0 to 1

session = onnxruntime.InferenceSession("encoder.onnx", providers=["CPUExecutionProvider"])  # needs no PyTorch
images = numpy.random.default_rng(0).random((5, made.channels, made.size, made.size), dtype=numpy.float32)  # yours
[representations] = session.run(None, {"images": images})
print(f"representations {representations.shape}, the same as PyTorch's up to {made.difference:.0e} of the largest")
