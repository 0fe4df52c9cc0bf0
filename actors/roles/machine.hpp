#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "actors/roles/work.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// Names a timer within its machine.
using TimerId = std::uint32_t;

struct Send {
  messages::Address to;
  messages::Message body;
};

/// Asks for Machine::timer(id) after a delay. Arming an armed timer moves it.
struct ArmTimer {
  TimerId id = 0;
  std::chrono::nanoseconds after{};
};

struct CancelTimer {
  TimerId id = 0;
};

struct Perform {
  Work work;
};

using Effect = std::variant<Send, ArmTimer, CancelTimer, Perform>;

/// Collects what a machine wants done, in order.
class Outbox {
 public:
  Outbox();
  ~Outbox();

  void send(messages::Address to, messages::Message body);
  void arm(TimerId id, std::chrono::nanoseconds after);
  void cancel(TimerId id);
  void perform(Work work);

  std::vector<Effect>& effects() { return effects_; }

 private:
  std::vector<Effect> effects_;
};

/// Makes decisions: a pure state machine. It knows no thread, no clock and no CAF; the same object is run by
/// an actor in production and by the simulator. Messages of a step or an epoch it does not expect are
/// ignored, never obeyed.
class Machine {
 public:
  virtual ~Machine() = default;

  /// Called once, before the first message.
  virtual void start(Outbox& outbox) { (void)outbox; }
  virtual void receive(const messages::Envelope& envelope, Outbox& outbox) = 0;
  virtual void timer(TimerId id, Outbox& outbox) { (void)id, (void)outbox; }

  /// After this machine, or work that it asked for, has thrown: the machine that takes its place, and in
  /// `outbox` what that does first. `heard` is the message that it threw at, if it was one; what it asked for
  /// before that is carried out. Null where what it knew cannot be known again: then the rank fails.
  virtual std::unique_ptr<Machine> successor(const messages::Failure& why, const messages::Envelope* heard,
                                             Outbox& outbox) const;

  /// The state's name, as docs/architecture.md lists it.
  virtual std::string_view state() const = 0;
  /// What it waits for and from whom, as a clause; empty when it waits for nothing in particular.
  virtual std::string waiting_for() const = 0;
};

template <class Handler, class... Kinds>
void dispatch_kind(const std::variant<Kinds...>& message, Handler& handler) {
  const auto hears = [&]<class Kind>(std::in_place_type_t<Kind>) {
    if constexpr (requires(const Kind& body) { handler(body); }) {
      if (const auto* body = std::get_if<Kind>(&message)) return handler(*body), true;
    }
    return false;
  };
  (hears(std::in_place_type<Kinds>) || ...);
}

/// Calls the overload of `handler` for the message's kind; kinds without one are ignored.
template <class Handler>
void dispatch(const messages::Message& message, Handler&& handler) {
  dispatch_kind(message, handler);
}

/// Builds one handler out of several lambdas, for dispatch().
template <class... Lambdas>
struct Overloaded : Lambdas... {
  using Lambdas::operator()...;
};
template <class... Lambdas>
Overloaded(Lambdas...) -> Overloaded<Lambdas...>;

}  // namespace troupe::actors
