"""Search: which configs to train next, proposed by Optuna and recorded in the store."""
