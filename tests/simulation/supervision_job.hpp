#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>

#include "actors/roles/machine.hpp"
#include "messages/address.hpp"
#include "tests/support/throwing.hpp"

namespace troupe::actors {

using tests::throw_it;
using tests::Thrown;
using tests::words_of;

/// Throws instead of its `at`-th message, from 1.
class ThrowingMachine final : public Machine {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// `when` may be null.
  ThrowingMachine(std::unique_ptr<Machine> machine, int at, Thrown what, bool* has_thrown,
                  Time* when = nullptr)
      : machine_(std::move(machine)), at_(at), what_(what), has_thrown_(has_thrown), when_(when) {}

  void start(Outbox& outbox) override { machine_->start(outbox); }
  void receive(const messages::Envelope& envelope, Outbox& outbox) override {
    if (++heard_ == at_) {
      *has_thrown_ = true;
      if (when_ != nullptr) *when_ = std::chrono::steady_clock::now();
      throw_it(what_);
    }
    machine_->receive(envelope, outbox);
  }
  void timer(TimerId id, Outbox& outbox) override { machine_->timer(id, outbox); }
  std::unique_ptr<Machine> successor(const messages::Failure& why, const messages::Envelope* heard,
                                     Outbox& outbox) const override {
    return machine_->successor(why, heard, outbox);
  }
  std::string_view state() const override { return machine_->state(); }
  std::string waiting_for() const override { return machine_->waiting_for(); }

 private:
  std::unique_ptr<Machine> machine_;
  int at_;
  Thrown what_;
  bool* has_thrown_;
  Time* when_;
  int heard_ = 0;
};

/// Where something is thrown in a job, once.
struct InjectionPoint {
  std::string name;  ///< for people
  core::Rank rank{};
  std::optional<messages::Role> role{};  ///< a message that it hears
  std::uint32_t index = 0;
  std::string work{};  ///< or work that somebody asks for, by work_name()
  int at = 1;          ///< the n-th of these, from 1
  Thrown what = Thrown::bad_alloc;

  friend std::ostream& operator<<(std::ostream& out, const InjectionPoint& of) { return out << of.name; }
};

/// "StageChunk"
inline std::string work_name(const Work& work) {
  const auto step = Overloaded{[](const PrepareBucket&) { return "PrepareBucket"; },
                               [](const LaunchCollective&) { return "LaunchCollective"; },
                               [](const PrepareVerdict&) { return "PrepareVerdict"; },
                               [](const StepShard&) { return "StepShard"; }};
  const auto checkpoint = Overloaded{[](const OpenSave&) { return "OpenSave"; },
                                     [](const StageChunk&) { return "StageChunk"; },
                                     [](const WriteChunk&) { return "WriteChunk"; },
                                     [](const FinishFiles&) { return "FinishFiles"; },
                                     [](const CloseSave&) { return "CloseSave"; },
                                     [](const MakeSaveDirectory&) { return "MakeSaveDirectory"; },
                                     [](const CommitSave&) { return "CommitSave"; },
                                     [](const DiscardSave&) { return "DiscardSave"; }};
  const auto replica = Overloaded{[](const MakeCopyDirectory&) { return "MakeCopyDirectory"; },
                                  [](const SealCopy&) { return "SealCopy"; },
                                  [](const OpenExchange&) { return "OpenExchange"; },
                                  [](const ReadRound&) { return "ReadRound"; },
                                  [](const ShareRound&) { return "ShareRound"; },
                                  [](const WriteRound&) { return "WriteRound"; },
                                  [](const CloseExchange&) { return "CloseExchange"; },
                                  [](const TidyCopies&) { return "TidyCopies"; },
                                  [](const DiscardCopies&) { return "DiscardCopies"; }};
  const auto experts = Overloaded{
      [](const GatherCounts&) { return "GatherCounts"; }, [](const HandOutPlan&) { return "HandOutPlan"; },
      [](const MoveRows&) { return "MoveRows"; }, [](const RefuseRows&) { return "RefuseRows"; },
      [](const KeepExpertState&) { return "KeepExpertState"; }};
  return std::visit(Overloaded{[&](const StepWork& of) { return std::visit(step, of); },
                               [&](const CheckpointWork& of) { return std::visit(checkpoint, of); },
                               [&](const ReplicaWork& of) { return std::visit(replica, of); },
                               [&](const ExpertWork& of) { return std::visit(experts, of); },
                               [](const AbortCollectives&) { return "AbortCollectives"; }},
                    work);
}

}  // namespace troupe::actors
