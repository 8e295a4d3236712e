"""Gradient-boosted trees as plain arrays: trained with scikit-learn, evaluated and stored without it.

All trees advance together, one level per step, so one row costs about ten numpy calls instead of
scikit-learn's per-call overhead, and a loaded artefact is numbers, not code.
"""

from __future__ import annotations

import numpy as np

#: Deepest tree that is trained; it is also the number of steps of an evaluation.
MAX_DEPTH = 8


class BoostedTrees:
    """An additive ensemble, absolute-error loss (so it foresees medians).

    Args:
        n_trees, learning_rate, max_leaves, min_leaf: as HistGradientBoostingRegressor's max_iter,
            learning_rate, max_leaf_nodes, min_samples_leaf.

    Attributes:
        feature_ (int16), threshold_ (float64), left_, right_ (int16), missing_left_ (bool), value_ (float64):
            [trees, nodes]; a leaf's children are the leaf itself.
        baseline_: float, added to the sum of the leaf values.
    """

    def __init__(
        self, n_trees: int = 120, learning_rate: float = 0.12, max_leaves: int = 31, min_leaf: int = 40
    ):
        self.n_trees = n_trees
        self.learning_rate = learning_rate
        self.max_leaves = max_leaves
        self.min_leaf = min_leaf
        self.feature_ = np.zeros((1, 1), dtype=np.int16)
        self.threshold_ = np.zeros((1, 1))
        self.left_ = np.zeros((1, 1), dtype=np.int16)
        self.right_ = np.zeros((1, 1), dtype=np.int16)
        self.missing_left_ = np.zeros((1, 1), dtype=np.bool_)
        self.value_ = np.zeros((1, 1))
        self.baseline_ = 0.0

    def fit(self, rows: np.ndarray, target: np.ndarray) -> BoostedTrees:
        """Fit on ``rows`` (float64 [n, features], NaN = unknown) and ``target`` (float64 [n]).

        Raises:
            RuntimeError: scikit-learn keeps its trees in a layout that this export does not know.
        """
        from sklearn.ensemble import HistGradientBoostingRegressor

        model = HistGradientBoostingRegressor(
            loss="absolute_error",
            max_iter=self.n_trees,
            learning_rate=self.learning_rate,
            max_leaf_nodes=self.max_leaves,
            max_depth=MAX_DEPTH,
            min_samples_leaf=self.min_leaf,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=0,
        ).fit(rows, target)
        self._take_over(model)
        probe = rows[:: max(1, len(rows) // 64)]
        if not np.allclose(self.predict(probe), model.predict(probe), atol=1e-6):
            raise RuntimeError(
                "the exported trees disagree with scikit-learn's own prediction; "
                "this scikit-learn version stores its trees differently"
            )
        return self

    def _take_over(self, model: object) -> None:
        # scikit-learn has no public export of its histogram trees; fit() checks the result against predict().
        try:
            trees = [stage[0].nodes for stage in model._predictors]  # type: ignore[attr-defined]
            shape = (len(trees), max(len(nodes) for nodes in trees))
            own = np.broadcast_to(np.arange(shape[1]), shape)
            self.feature_ = np.zeros(shape, dtype=np.int16)
            self.threshold_ = np.zeros(shape)
            self.left_, self.right_ = own.astype(np.int16), own.astype(np.int16)
            self.missing_left_ = np.zeros(shape, dtype=np.bool_)
            self.value_ = np.zeros(shape)
            for index, nodes in enumerate(trees):
                count = len(nodes)
                inner = ~nodes["is_leaf"].astype(bool)
                self.value_[index, :count] = np.where(inner, 0.0, nodes["value"])
                here = np.flatnonzero(inner)
                self.feature_[index, here] = nodes["feature_idx"][here]
                self.threshold_[index, here] = nodes["num_threshold"][here]
                self.left_[index, here] = nodes["left"][here]
                self.right_[index, here] = nodes["right"][here]
                self.missing_left_[index, here] = nodes["missing_go_to_left"][here]
            self.baseline_ = float(np.ravel(model._baseline_prediction)[0])  # type: ignore[attr-defined]
        except (AttributeError, KeyError, ValueError) as error:
            raise RuntimeError(f"cannot export this scikit-learn version's trees: {error}") from error

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """Return float64 [n] for ``rows`` (float64 [n, features]); n x trees is processed in blocks."""
        out = np.empty(len(rows))
        for start in range(0, len(rows), 2048):
            out[start : start + 2048] = self._predict_block(rows[start : start + 2048])
        return out

    def _predict_block(self, rows: np.ndarray) -> np.ndarray:
        trees, nodes = self.feature_.shape
        base = np.arange(trees) * nodes
        feature, threshold = self.feature_.ravel(), self.threshold_.ravel()
        left, right, missing_left = self.left_.ravel(), self.right_.ravel(), self.missing_left_.ravel()
        at = np.zeros((len(rows), trees), dtype=np.int64)
        row_number = np.arange(len(rows))[:, None]
        for _ in range(MAX_DEPTH):
            flat = at + base
            value = rows[row_number, feature[flat]]
            go_left = np.where(np.isnan(value), missing_left[flat], value <= threshold[flat])
            at = np.where(go_left, left[flat], right[flat])
        return self.baseline_ + self.value_.ravel()[at + base].sum(axis=1)
