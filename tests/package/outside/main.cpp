// A project which has Troupe from its package: a device, a buffer on it, and an actor's machine.
#include <cstdio>

#include "actors/roles/conductor.hpp"
#include "gpu/host/host_device.hpp"

int main() {
  auto device = troupe::gpu::open_host_device();
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    return 1;
  }
  troupe::actors::ConductorMachine conductor({.entries = {}});
  return conductor.state() == "idle" ? 0 : 1;
}
