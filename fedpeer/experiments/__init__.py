"""The paper's figures and the attack arena."""
