"""How parties talk (A2): typed messages, gateways, fencing tokens, and the networks that carry them."""
