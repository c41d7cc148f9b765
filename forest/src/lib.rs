//! Tree ensembles over histograms: random forest and gradient boosting, with fast single rows.
