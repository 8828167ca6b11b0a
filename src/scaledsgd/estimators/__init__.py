"""The estimators, which follow scikit-learn's contract."""
