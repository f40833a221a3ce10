def mirror_version(*a): pass
def mirror_alias(*a): pass
def server(): pass
def mirror(): pass
