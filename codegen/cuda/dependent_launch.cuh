// Launches that may begin before those in front of them have ended.
// Waits until the launches in front have ended, and sees what they wrote.
TW_FN void tw_wait_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The launch behind may begin once every block of this one has come here.
TW_FN void tw_start_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
