"""How the weights of an objective are computed: from a whole score matrix, or at scale."""
