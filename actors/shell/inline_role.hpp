#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "actors/shell/role_host.hpp"

namespace troupe::actors {

/// Where checks learn what a role does that runs in no actor. Called on the thread that speaks to the role.
class RoleWitness {
 public:
  virtual ~RoleWitness() = default;
  virtual void heard(const messages::Envelope& envelope) = 0;
  virtual void asked(const messages::Address& who, const Work& work) = 0;
  /// After each message: the state it left the role in.
  virtual void is_in(const messages::Address& who, std::string_view state) = 0;
};

/// Runs a machine on the thread that speaks to it, instead of in an actor: for decisions that this thread
/// waits for, several per layer of a model, where a hop to an actor costs more than the decision. It sets no
/// timers.
class InlineRole final : private EffectSink {
 public:
  struct Ways {
    std::function<void(messages::Envelope)> post;
    std::function<void(const messages::Address& from, const Work&)> perform;  ///< must not speak to the role
    std::function<std::chrono::nanoseconds()> now;
    Tracer* tracer = nullptr;        ///< may be null
    RoleWitness* witness = nullptr;  ///< may be null
  };

  InlineRole(messages::Address self, core::Epoch epoch, std::unique_ptr<Machine> machine, Ways ways);

  /// From one thread at a time, in the name of this rank's trainer.
  void hear(messages::Message body);
  /// From any thread.
  WaitReport report() const;

 private:
  void post(messages::Envelope envelope) override { ways_.post(std::move(envelope)); }
  void arm(TimerId id, std::uint64_t generation, std::chrono::nanoseconds after) override;
  void perform(const messages::Address& self, const Work& work) override;

  messages::Address self_;
  core::Epoch epoch_;
  Ways ways_;
  mutable std::mutex mutex_;  // guards host_
  RoleHost host_;
};

}  // namespace troupe::actors
