/* NVML that pretends: knows the fake driver's device, and counts how often its clock is read. */

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
