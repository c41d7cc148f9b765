"""scikit-learn and LightGBM on the data and with the options of `examples/compare.rs`. For development only.

    python3 -m venv venv && venv/bin/pip install numpy scikit-learn lightgbm
    cargo run --release -p ballast-forest --example compare -- DIR
    venv/bin/python cluster/forest/compare/compare.py DIR
"""

import sys

import lightgbm
import numpy
from sklearn import ensemble, metrics


def read(path):
    data = numpy.genfromtxt(path, delimiter=",", dtype=numpy.float32)
    return data[:, :-2], data[:, -2].astype(int), data[:, -1].astype(float)


def print_classes(name, model, classes, train, test):
    model.fit(train[0], train[1])
    shares = model.predict_proba(test[0])
    auc = f"{metrics.roc_auc_score(test[1], shares[:, 1]):.4f}" if classes == 2 else "     -"
    loss = metrics.log_loss(test[1], numpy.clip(shares, 1e-7, 1))
    accuracy = (shares.argmax(axis=1) == test[1]).mean()
    print(f"{classes} classes, {name:28} AUC {auc}, log-loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)


def print_values(name, model, train, test):
    model.fit(train[0], train[2])
    error = ((model.predict(test[0]) - test[2]) ** 2).mean()
    print(f"values, {name:28} mean squared error {error:.4f}", flush=True)


directory = sys.argv[1] if len(sys.argv) > 1 else "."
boost = dict(n_estimators=100, num_leaves=64, max_depth=6, learning_rate=0.1, reg_lambda=1.0,
             min_child_samples=20, min_child_weight=0.0, max_bin=255, n_jobs=2, verbose=-1)
histogram = dict(max_iter=100, max_depth=6, max_leaf_nodes=None, learning_rate=0.1,
                 l2_regularization=1.0, min_samples_leaf=20, early_stopping=False)
forest = dict(n_estimators=100, max_depth=12, min_samples_leaf=5, n_jobs=2, random_state=1)
for classes in [2, 4]:
    train, test = (read(f"{directory}/{part}{classes}.csv") for part in ["train", "test"])
    for name, model in [
        ("LightGBM", lightgbm.LGBMClassifier(**boost)),
        ("scikit-learn, histogram", ensemble.HistGradientBoostingClassifier(**histogram)),
        ("scikit-learn, forest", ensemble.RandomForestClassifier(max_features="sqrt", **forest)),
        ("scikit-learn, all features", ensemble.RandomForestClassifier(max_features=None, **forest)),
    ]:
        print_classes(name, model, classes, train, test)
train, test = (read(f"{directory}/{part}_values.csv") for part in ["train", "test"])
for name, model in [
    ("LightGBM", lightgbm.LGBMRegressor(**boost)),
    ("scikit-learn, histogram", ensemble.HistGradientBoostingRegressor(**histogram)),
    ("scikit-learn, 5 features", ensemble.RandomForestRegressor(max_features=5, **forest)),
]:
    print_values(name, model, train, test)
