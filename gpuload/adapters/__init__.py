"""What other frameworks need so that gpuload's loader survives them: a module each, and only where one is needed.

Lightning makes a loader anew from its attributes, Trainer's hook returns any loader, plain DDP passes it on: none of
them needs anything here. None imports its framework before that framework has imported itself.
"""
