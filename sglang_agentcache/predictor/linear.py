"""Ridge regression of log durations on hashed TF-IDF terms; only training needs scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sglang_agentcache.predictor.features import N_TERMS


class TermRidge:
    """log10 duration = intercept + <l2-normalised idf vector of the terms, coefficients>.

    Args:
        alpha: ridge penalty.

    Attributes:
        idf_, coef_: float32 [N_TERMS]. A term that training did not see weighs much and says nothing, which
            draws a strange call towards the average.
        intercept_: float.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha
        self.idf_ = np.ones(N_TERMS, dtype=np.float32)
        self.coef_ = np.zeros(N_TERMS, dtype=np.float32)
        self.intercept_ = 0.0

    def fit(self, terms: Sequence[np.ndarray], target: np.ndarray) -> TermRidge:
        """Fit on ``terms`` (n int64 arrays of term numbers) and ``target`` (float64 [n])."""
        from scipy.sparse import csr_matrix
        from sklearn.linear_model import Ridge

        starts = np.concatenate([[0], np.cumsum([len(row) for row in terms])])
        columns = np.concatenate(terms)
        frequency = np.bincount(columns, minlength=N_TERMS)
        self.idf_ = (np.log((1 + len(terms)) / (1 + frequency)) + 1).astype(np.float32)
        values = self.idf_[columns].astype(np.float64)
        squared = np.add.reduceat(values**2, starts[:-1]) if len(terms) else values
        values /= np.sqrt(np.repeat(squared, np.diff(starts)))
        matrix = csr_matrix((values, columns, starts), shape=(len(terms), N_TERMS))
        model = Ridge(alpha=self.alpha, solver="sparse_cg", tol=1e-3).fit(matrix, target)
        self.coef_ = model.coef_.astype(np.float32)
        self.intercept_ = float(model.intercept_)
        return self

    def predict_one(self, terms: np.ndarray) -> float:
        """Return the log10 duration foreseen for one call with these terms (int64 [k], k >= 1)."""
        weights = self.idf_[terms]
        return self.intercept_ + float(weights @ self.coef_[terms]) / float(np.sqrt(weights @ weights))

    def predict(self, terms: Sequence[np.ndarray]) -> np.ndarray:
        """`predict_one` for many calls: float64 [n]."""
        return np.array([self.predict_one(row) for row in terms], dtype=np.float64)
