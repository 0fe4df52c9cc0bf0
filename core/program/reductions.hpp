#pragma once

#include <cstdint>
#include <vector>

#include "core/program/domain_lanes.hpp"
#include "core/program/plan_program.hpp"

namespace troupe::core {

/// Plans how gradients get from each rank's backward, where they are partial sums over all axes, to where the
/// optimizer steps them. Part of plan_program().
class Reductions {
 public:
  /// A unit in a sweep.
  struct Unit {
    int index = 0;
    TrainerPoint ready;   ///< its gradients are complete
    bool pooled = false;  ///< they are in a slot of the pool
    TrainerPoint reused;  ///< their slot goes to another unit, or the next round's gradients arrive
  };

  static Result<Reductions> create(const ProgramInputs& inputs, const std::vector<int>& coordinates);

  /// Appends the entries of one unit in a round.
  Result<void> add(const Unit& unit, bool last_round, std::vector<ProgramEntry>& entries) const;

 private:
  /// The subtree roots that each member of an axis holds, and whether each of them is a single lane.
  struct Held {
    Counts roots{};
    bool single_lanes = true;
  };
  /// A flat tensor in transit.
  struct Travel {
    TensorReference tensor;
    const TensorClass* tensor_class = nullptr;
    const Domain* domain = nullptr;
    const std::vector<Held>* held = nullptr;
    std::int64_t elements = 0;  ///< of the complete tensor
    Placements at;
  };

  /// The ranks of one domain, per axis. For partial axes: after all rounds; for sharded axes: in every round,
  /// and in the last.
  struct Domains {
    std::vector<Held> every;
    std::vector<Held> last;
  };

  explicit Reductions(const ProgramInputs& inputs) : inputs_(&inputs) {}

  static Held held_in_round(const DomainLanes& domain, const Domain& axes, std::size_t axis, int round);
  Result<void> find_held(std::size_t domain, const std::vector<int>& coordinates, int rounds);
  void redistribute(Travel& travel, AxisRedistribution to, const ProgramEntry& model,
                    std::vector<ProgramEntry>& entries) const;
  ProgramEntry exchange(const Travel& travel, std::size_t axis, const Held& held) const;
  /// For the result that the reduction leaves on its members.
  ProgramEntry also_sum(const AlsoSum& over, const TensorClass& tensor_class,
                        const ProgramEntry& reduction) const;

  const ProgramInputs* inputs_;
  std::vector<Domains> held_;  // per domain; empty if no gradient is in it
};

}  // namespace troupe::core
