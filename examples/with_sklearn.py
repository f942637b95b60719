"""Measure dimensions with a scikit-learn estimator: of digits, one by one, and of their projections."""

from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline

from ldreg.integrations.sklearn import LIDEstimator

digits = load_digits()

found = LIDEstimator(k=64).fit(digits.data)  # names and calls of scikit-dimension: skdim.id.MOM().fit(digits.data)
print(f"all pixels: {found.dimension_:.2f}")
for digit in range(10):
    print(f"  digit {digit}: {found.dimension_pw_[digits.target == digit].mean():.2f}")

for components in (2, 5, 20):
    projected = make_pipeline(PCA(components), LIDEstimator(k=64, comb="geometric"))
    print(f"{components} principal components: {projected.fit(digits.data)[-1].dimension_:.2f}")
