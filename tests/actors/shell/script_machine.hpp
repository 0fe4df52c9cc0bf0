#pragma once

#include <functional>
#include <string>
#include <vector>

#include "actors/roles/machine.hpp"

namespace troupe::actors {

/// A machine that does what the test says and writes down what it hears.
class ScriptMachine final : public Machine {
 public:
  struct Script {
    std::function<void(Outbox&)> on_start = [](Outbox&) {};
    std::function<void(const messages::Envelope&, Outbox&)> on_message = [](const auto&, Outbox&) {};
    std::function<void(TimerId, Outbox&)> on_timer = [](TimerId, Outbox&) {};
    std::vector<std::string> heard;
    int starts = 0;
    int timers = 0;
  };

  /// `script` must outlive the machine.
  explicit ScriptMachine(Script* script) : script_(*script) {}

  void start(Outbox& outbox) override {
    script_.starts += 1;
    script_.on_start(outbox);
  }
  void receive(const messages::Envelope& envelope, Outbox& outbox) override {
    script_.heard.emplace_back(messages::name_of(envelope.body));
    script_.on_message(envelope, outbox);
  }
  void timer(TimerId id, Outbox& outbox) override {
    script_.timers += 1;
    script_.on_timer(id, outbox);
  }
  std::string_view state() const override { return "scripted"; }
  std::string waiting_for() const override { return "its cue"; }

 private:
  Script& script_;
};

}  // namespace troupe::actors
