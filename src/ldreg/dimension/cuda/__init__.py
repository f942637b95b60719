"""CUDA paths behind two entry points: `nearest.nearest` selects candidates, `step.ldreg_step` is LDReg's whole step.

Modules named `*_kernels` import Triton, which is not installed everywhere, and are imported only where they are used.
"""
