// A FAKE libcuda.so.1 for tests: GPUs that are memory of this process, written by us from the signatures of cuda.h.
//
// FAKE_GPUS: how many (2). FAKE_FAULT: refuse (no peer access), drop (copies between GPUs move nothing), flip (one byte
// wrong), ones (all 0xff), fail (error 719), hang, die, full (no memory), absent (cuInit finds no GPU),
// broken (cuInit fails).
// FAKE_GB_S: what a copy is said to take, by the events; FAKE_SHARED_GB_S: the same where several streams copy at once.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct { int device; } *CUcontext;
typedef struct { double seconds; } *CUstream;
typedef struct { double at; CUstream stream; } *CUevent;
typedef uint64_t CUdeviceptr;

static int visible[64], count;
static CUstream streams[64];
static int streams_made;
static CUcontext current;

static int is(const char *fault) {
    const char *asked = getenv("FAKE_FAULT");
    return asked && !strcmp(asked, fault);
}

static double number(const char *name, double otherwise) {
    const char *text = getenv(name);
    return text ? atof(text) : otherwise;
}

CUresult cuInit(unsigned flags) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int all = (int)number("FAKE_GPUS", 2);
    if (flags || is("absent")) return 100;
    if (is("broken")) return 803;
    if (!getenv("CUDA_DEVICE_ORDER") || strcmp(getenv("CUDA_DEVICE_ORDER"), "PCI_BUS_ID")) return 1;
    if (!list) {
        for (count = 0; count < all; count++) visible[count] = count;
    } else {
        for (char *rest = strdup(list), *word; (word = strsep(&rest, ","));) visible[count++] = atoi(word);
    }
    return 0;
}

CUresult cuDeviceGetCount(int *found) { *found = count; return 0; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return ordinal < count ? 0 : 101; }

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
    snprintf(text, (size_t)length, "0000:%02X:00.0", 0x41 + 0x10 * visible[device]);
    return 0;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = malloc(sizeof **context);
    (*context)->device = visible[device];
    return 0;
}

CUresult cuCtxSetCurrent(CUcontext context) { current = context; return 0; }
CUresult cuCtxSynchronize(void) { return 0; }
CUresult cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b) { *can = a != b && !is("refuse"); return 0; }
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) { return flags || peer == current ? 1 : 0; }

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    *stream = calloc(1, sizeof **stream);
    streams[streams_made++] = *stream;
    return flags == 1 ? 0 : 1;
}

CUresult cuStreamSynchronize(CUstream stream) { (void)stream; return 0; }

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    *address = (CUdeviceptr)(uintptr_t)malloc(size);
    return is("full") ? 2 : 0;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
    memcpy((void *)(uintptr_t)to, from, size);
    return 0;
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    memcpy(to, (void *)(uintptr_t)from, size);
    return 0;
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char byte, size_t size) {
    memset((void *)(uintptr_t)to, byte, size);
    return 0;
}

static int busy(void) {
    int found = 0;
    for (int n = 0; n < streams_made; n++) found += streams[n]->seconds > 0;
    return found;
}

CUresult cuMemcpyPeerAsync(
    CUdeviceptr to, CUcontext target, CUdeviceptr from, CUcontext source, size_t size, CUstream stream) {
    if (is("hang")) for (;;) sleep(1);
    if (is("die")) { signal(SIGABRT, SIG_DFL); abort(); }
    if (is("fail") || current != source || target == source) return 719;
    if (!is("drop")) memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, size);
    if (is("flip")) ((unsigned char *)(uintptr_t)to)[100] ^= 1;
    if (is("ones")) memset((void *)(uintptr_t)to, 0xff, size);
    stream->seconds += 1e-12;  // it has begun
    double rate = busy() > 1 ? number("FAKE_SHARED_GB_S", 25) : number("FAKE_GB_S", 50);
    stream->seconds += (double)size / rate / 1e9;
    return 0;
}

CUresult cuEventCreate(CUevent *event, unsigned flags) { *event = calloc(1, sizeof **event); return (int)flags; }

CUresult cuEventRecord(CUevent event, CUstream stream) {
    event->at = stream->seconds;
    event->stream = stream;
    return 0;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
    if (begin->stream != end->stream) return 400;
    *milliseconds = (float)((end->at - begin->at) * 1e3);
    for (int n = 0; n < streams_made; n++) streams[n]->seconds = 0;
    return 0;
}

CUresult cuGetErrorName(CUresult result, const char **name) {
    *name = result == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : result == 100 ? "CUDA_ERROR_NO_DEVICE"
          : result == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_FAKE";
    return 0;
}
