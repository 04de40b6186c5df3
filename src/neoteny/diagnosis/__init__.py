"""`diagnose`: is this network losing plasticity?"""
