/* NVML that pretends: knows the fake driver's device, counts how often its clock is read, and tells of three errors. */

#include <stdio.h>
#include <string.h>

static int initialised;
static unsigned reads;

int nvmlInit_v2(void) {
    initialised = 1;
    return 0;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "580.95.05");
    return initialised ? 0 : 1;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = &reads;
#ifdef FAULTY
    return 0;
#endif
    return strcmp(uuid, "GPU-00112233-4455-6677-8899-aabbccddeeff") == 0 ? 0 : 6;
}

/* The first read is 1001 MHz, the second 1002. */
int nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *mhz) {
    *mhz = 1000 + ++reads;
    return device == &reads && type == 1 ? 0 : 2;
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) {
#ifdef NO_POWER
    return 3;
#endif
    *milliwatts = 700000;
    return device == &reads ? 0 : 2;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
#ifdef NO_POWER
    return 3;
#endif
    *milliwatts = 512500;
    return device == &reads ? 0 : 2;
}

#ifndef NO_EVENTS
struct event {
    void *device;
    unsigned long long kind, data;
    unsigned gpu_instance, compute_instance;
};

static unsigned told;
static int watched;

int nvmlEventSetCreate(void **set) {
    *set = &told;
    return initialised ? 0 : 1;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *set) {
#ifdef NO_XIDS
    return 3;
#endif
    watched = device == &reads && kinds == 8 && set == &told;
    return watched ? 0 : 2;
}

/* A page fault, twice, and an error without a name; then nothing any more. */
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned milliseconds) {
    static const unsigned long long errors[] = {31, 31, 999};
    (void)milliseconds;
    if (!watched || set != &told) return 2;
#ifdef FAULTY
    /* Whenever it is asked a page fault was there, and nothing else. */
    *event = (struct event){&reads, 8, 31, ~0u, ~0u};
    return told++ % 2 ? 0 : 10;
#endif
    if (told == sizeof errors / sizeof *errors) return 10;
    *event = (struct event){&reads, 8, errors[told++], ~0u, ~0u};
    return 0;
}

int nvmlEventSetFree(void *set) { return set == &told ? 0 : 2; }
#endif
