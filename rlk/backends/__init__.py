"""The backends: lowering, schedules, compiler and loader of each, behind one interface."""
