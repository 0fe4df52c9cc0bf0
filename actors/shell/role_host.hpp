#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "actors/roles/machine.hpp"
#include "actors/shell/tracer.hpp"
#include "actors/world/log.hpp"
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
  /// Nothing in this process can end the rank's part in the job any more.
  virtual void end_process(const std::string& why);
};

/// The part of an actor's shell that does not depend on what runs it: feeds its machine, carries out the
/// effects in order, ignores stale epochs and cancelled timers, and remembers what a report needs. Not thread
/// safe: one message at a time. What the machine or its work throws passes through, and comes back by
/// threw().
class RoleHost {
 public:
  /// `tracer` and `profiler` may be null; they, `sink` and the log must outlive the host. At level trace it
  /// says each message, at level debug each new state.
  RoleHost(messages::Address self, core::Epoch epoch, std::unique_ptr<Machine> machine, EffectSink& sink,
           Tracer* tracer, std::function<std::chrono::nanoseconds()> now, core::Profiler* profiler = nullptr,
           Logger log = {});

  void start();
  /// `past` is what the sender knew to have happened.
  void receive(const messages::Envelope& envelope, const gpu::Past& past = {});
  void timer(TimerId id, std::uint64_t generation);
  /// The parent's decision about an actor that has thrown `what`: a successor takes its place where there can
  /// be one, a few times; otherwise the rank fails, with the actor's name, and the actor hears nothing more.
  void threw(std::string_view what);
  WaitReport report() const;

  const messages::Address& address() const { return self_; }
  const Machine& machine() const { return *machine_; }
  std::uint64_t stale_messages() const { return stale_messages_; }

 private:
  void handle(const messages::Envelope& envelope, const gpu::Past& past);
  void say_state();
  template <class Call>
  void run(const messages::Envelope* heard, const Call& call);
  void carry_out(Effect& effect);
  bool restart(const messages::Failure& why);
  void fail(messages::Failure why);

  // First what each message needs, close together, for simulations, which have thousands of hosts.
  messages::Address self_;
  core::Epoch epoch_;
  std::unique_ptr<Machine> machine_;
  EffectSink& sink_;
  Tracer* tracer_;
  core::Profiler* profiler_;
  Logger log_;
  std::function<std::chrono::nanoseconds()> now_;
  std::string_view last_message_;
  std::chrono::nanoseconds last_message_at_{};
  gpu::HostLine line_;
  bool has_failed_ = false;
  int restarts_ = 0;
  std::string track_;
  std::string_view said_state_;
  std::unordered_map<TimerId, std::uint64_t> timer_generations_;  // one per timer of the machine
  std::uint64_t next_generation_ = 1;
  std::uint64_t stale_messages_ = 0;
  std::unique_ptr<messages::Envelope> thrown_at_;  ///< the message that was being handled
};

/// Calls `call`, and `threw` with what it throws, in words.
template <class Call, class Threw>
void supervise(const Call& call, const Threw& threw) {
  try {
    call();
  } catch (const std::exception& error) {
    threw(error.what());
  } catch (...) {
    threw("something that is not a std::exception");
  }
}

/// One line per report, in the given order: "conductor @ rank 1: waiting for ... (last CollectiveDone 1.2 s
/// ago)".
std::string render(const std::vector<WaitReport>& reports, std::chrono::nanoseconds now);

}  // namespace troupe::actors
