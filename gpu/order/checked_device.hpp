#pragma once

#include <functional>
#include <memory>
#include <string>

#include "gpu/device.hpp"

namespace troupe::gpu {

/// Is called, from any thread, for every pair of tasks that nothing orders: with a whole sentence that names
/// them and the edge that is missing. A pair is reported once.
using OrderReport = std::function<void(std::string)>;

/// The same device, and a check that two accesses to the same memory, of which one writes, are ordered:
/// whatever happened in this run, they could not have happened in the other order, or at the same time.
///
/// Streams and events carry vector clocks. Edges are: the order of a stream; an event that a stream waits
/// for; an event, a stream or the destruction of a stream that the host waits for; a notification, for who is
/// notified; enqueuing, for what the host knew then. What the host knows belongs to a HostLine, and messages
/// between actors pass it on, so that an edge exists where there is a reason for it, not where the machine
/// was slow enough. Whether something is complete (EventState::is_complete()) is no edge: it depends on the
/// time of asking.
///
/// Memory is checked if it comes from this device, and until it is freed, which counts as writing all of it.
/// A task that does not say what it touches is not checked: say it with declare() (gpu/order/task_order.hpp).
std::unique_ptr<Device> check_order(std::unique_ptr<Device> device, OrderReport report);
/// `device` must outlive it.
std::unique_ptr<Device> check_order(Device& device, OrderReport report);

}  // namespace troupe::gpu
