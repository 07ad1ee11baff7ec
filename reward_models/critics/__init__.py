"""reward_models/critics"""
