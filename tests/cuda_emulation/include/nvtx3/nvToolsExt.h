#pragma once

#include <cstddef>
#include <cstdint>

// The part of NVTX that Troupe calls. cuda_emulation::attach_profiler() is the tool that listens.

extern "C" {

struct nvtxDomainRegistration_st;
using nvtxDomainHandle_t = nvtxDomainRegistration_st*;

#define NVTX_VERSION 3
#define NVTX_EVENT_ATTRIB_STRUCT_SIZE (static_cast<std::uint16_t>(sizeof(nvtxEventAttributes_t)))

enum nvtxMessageType_t : std::int32_t { NVTX_MESSAGE_UNKNOWN = 0, NVTX_MESSAGE_TYPE_ASCII = 1 };

union nvtxMessageValue_t {
  const char* ascii;
};

struct nvtxEventAttributes_t {
  std::uint16_t version;
  std::uint16_t size;
  std::int32_t messageType;
  nvtxMessageValue_t message;
};

nvtxDomainHandle_t nvtxDomainCreateA(const char* name);
int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range);
int nvtxDomainRangePop(nvtxDomainHandle_t domain);
}
