#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "actors/roles/machine.hpp"
#include "actors/shell/tracer.hpp"
#include "core/profiler.hpp"
#include "gpu/order/host_line.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// One line of the answer to "who waits for whom".
struct WaitReport {
  messages::Address who;
  std::string state;
  std::string waiting_for;
  std::string last_message;  ///< the name of the last message it received
  /// When that was, by the device's clock; empty if unknown.
  std::optional<std::chrono::nanoseconds> since;
};

/// Where a machine's effects go. The shell that runs the machine provides it.
class EffectSink {
 public:
  virtual ~EffectSink() = default;
  virtual void post(messages::Envelope envelope) = 0;
  /// Calls RoleHost::timer(id, generation) after a delay.
  virtual void arm(TimerId id, std::uint64_t generation, std::chrono::nanoseconds after) = 0;
  virtual void perform(const messages::Address& self, const Work& work) = 0;
};

/// The part of an actor's shell that does not depend on what runs it: feeds its machine, carries out the
/// effects in order, ignores stale epochs and cancelled timers, and remembers what a report needs. Not thread
/// safe: one message at a time.
class RoleHost {
 public:
  /// `tracer` and `profiler` may be null; they and `sink` must outlive the host.
  RoleHost(messages::Address self, core::Epoch epoch, std::unique_ptr<Machine> machine, EffectSink& sink,
           Tracer* tracer, std::function<std::chrono::nanoseconds()> now, core::Profiler* profiler = nullptr);

  void start();
  /// `past` is what the sender knew to have happened.
  void receive(const messages::Envelope& envelope, const gpu::Past& past = {});
  void timer(TimerId id, std::uint64_t generation);
  WaitReport report() const;

  const messages::Address& address() const { return self_; }
  const Machine& machine() const { return *machine_; }
  std::uint64_t stale_messages() const { return stale_messages_; }

 private:
  void handle(const messages::Envelope& envelope, const gpu::Past& past);
  void carry_out(Outbox& outbox);

  messages::Address self_;
  core::Epoch epoch_;
  std::unique_ptr<Machine> machine_;
  EffectSink& sink_;
  Tracer* tracer_;
  core::Profiler* profiler_;
  std::function<std::chrono::nanoseconds()> now_;
  std::string track_;
  std::unordered_map<TimerId, std::uint64_t> timer_generations_;  // one per timer of the machine
  std::uint64_t next_generation_ = 1;
  std::uint64_t stale_messages_ = 0;
  gpu::HostLine line_;
  std::string_view last_message_;
  std::chrono::nanoseconds last_message_at_{};
};

/// One line per report, in the given order: "conductor @ rank 1: waiting for ... (last CollectiveDone 1.2 s
/// ago)".
std::string render(const std::vector<WaitReport>& reports, std::chrono::nanoseconds now);

}  // namespace troupe::actors
