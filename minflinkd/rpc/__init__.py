"""How parties talk (A2): typed messages, mailboxes, fencing tokens, and the networks that carry them."""
