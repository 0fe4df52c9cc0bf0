#include "core/program/program_limits.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;
constexpr std::size_t kMostAxes = 4;
constexpr std::int64_t kMostUnits = 1 << 20;
/// A check has lists for every point of a step, of which a round has two for each unit.
constexpr std::int64_t kMostPoints = 1'000'000;
constexpr std::int64_t kMostElements = std::int64_t{1} << 50;
constexpr int kMostStreams = 64;
constexpr int kMostCredits = 1 << 20;

Result<std::int64_t> product_of(const std::vector<int>& sizes) {
  std::int64_t product = 1;
  if (sizes.empty() || sizes.size() > kMostAxes) {
    return fail(Errc::corrupt, "{} axes; a job has 1 to {}", sizes.size(), kMostAxes);
  }
  for (const int size : sizes) {
    if (size < 1 || product > kMostRanks / size) {
      return fail(Errc::corrupt, "an axis of {} ranks; a job has 1 to {} ranks", size, kMostRanks);
    }
    product *= size;
  }
  return product;
}

/// A program whose own numbers are checked against each other.
class Limits {
 public:
  Limits(const Program& program, const std::vector<int>& sizes) : program_(program), sizes_(sizes) {}

  Result<void> check() {
    TRY(check_facts());
    TRY(check_units());
    std::int64_t launches = 0;
    std::vector<const ProgramSegment*> segments{&program_.body, &program_.last_round};
    for (const ProgramSegment& segment : program_.pass_segments) segments.push_back(&segment);
    segments.push_back(&program_.epilogue);
    for (const ProgramSegment* segment : segments) {
      launches += TRY(launches_of(*segment, kMostFileLaunches - launches));
    }
    if (program_.last_round.times != 1 || program_.epilogue.times != 1) {
      return fail(Errc::corrupt, "the last round and the epilogue run once each, not {} and {} times",
                  program_.last_round.times, program_.epilogue.times);
    }
    TRY(check_rounds());
    return check_own_operations();
  }

 private:
  Result<void> check_facts() {
    const auto axes = sizes_.size();
    if (program_.domains.empty() || program_.domains[0].sizes != sizes_ ||
        program_.coordinates.size() != axes) {
      return fail(Errc::corrupt, "domain 0 and coordinates of a program have the sizes of its job");
    }
    for (std::size_t axis = 0; axis < axes; ++axis) {
      if (program_.coordinates[axis] >= 0 && program_.coordinates[axis] < sizes_[axis]) continue;
      return fail(Errc::corrupt, "coordinate {} is beyond an axis of {} ranks", program_.coordinates[axis],
                  sizes_[axis]);
    }
    const auto [of_lane, of_rank] = program_.pieces;
    if (of_lane < 1 || of_rank < 1 || of_lane % of_rank != 0 || sizes_.back() % (of_lane / of_rank) != 0) {
      return fail(Errc::corrupt, "{} pieces of a lane, {} on each rank, do not fit an axis of {} ranks",
                  of_lane, of_rank, sizes_.back());
    }
    for (const Domain& domain : program_.domains) {
      if (domain.axes.size() != axes || domain.sizes.size() != axes) {
        return fail(Errc::corrupt, "a domain has {} axes and {} sizes; the job has {}", domain.axes.size(),
                    domain.sizes.size(), axes);
      }
      TRY(product_of(domain.sizes));
    }
    for (const TensorClass& tensor_class : program_.classes) {
      if (tensor_class.domain >= program_.domains.size()) {
        return fail(Errc::corrupt, "a class is in domain {} of {}", tensor_class.domain,
                    program_.domains.size());
      }
      if (const auto checked = check_gathered(tensor_class); !checked) {
        return fail(Errc::corrupt, "{}", checked.error().message);
      }
      const auto& also = tensor_class.also_sum;
      if (!also || (also->members >= 2 && also->members <= kMostRanks)) continue;
      return fail(Errc::corrupt, "gradients are also summed over {} ranks of {}; these are 2 to {}",
                  also->members, name_of(also->group), kMostRanks);
    }
    const bool pools = program_.credits.size() == kPools &&
                       std::all_of(program_.credits.begin(), program_.credits.end(),
                                   [](int slots) { return slots >= 0 && slots <= kMostCredits; });
    if (!pools) return fail(Errc::corrupt, "credits are {} numbers from 0 to {}", kPools, kMostCredits);
    if (program_.streams < 1 || program_.streams > kMostStreams) {
      return fail(Errc::corrupt, "{} streams; there are 1 to {}", program_.streams, kMostStreams);
    }
    return {};
  }

  Result<void> check_units() {
    for (const UnitRun& run : program_.units) {
      if (run.count < 1 || run.count > kMostUnits - units_) {
        return fail(Errc::corrupt, "a run of {} units; a program has at most {} in all", run.count,
                    kMostUnits);
      }
      units_ += run.count;
      for (const FlatTensor& tensor : run.unit.tensors) {
        if (tensor.tensor_class < program_.classes.size() && tensor.elements >= 0 &&
            tensor.elements <= kMostElements) {
          continue;
        }
        return fail(Errc::corrupt, "a tensor of {} elements is in class {} of {}", tensor.elements,
                    tensor.tensor_class, program_.classes.size());
      }
    }
    const bool has_list = !program_.passes.empty();
    if (program_.rounds < 1 || program_.body.times != (has_list ? 0 : program_.rounds - 1) ||
        program_.rounds > kMostPoints / (2 * (units_ + 1))) {
      return fail(Errc::corrupt,
                  "{} rounds with a body that is done {} times, of {} units; rounds are one more, "
                  "and with this many units at most {}",
                  program_.rounds, program_.body.times, units_, kMostPoints / (2 * (units_ + 1)));
    }
    TRY(check_order());
    return check_list();
  }

  Result<void> check_order() const {
    if (program_.order.empty()) return {};
    if (!program_.passes.empty()) {
      return fail(Errc::corrupt, "a program with a list of passes has an order of units as well");
    }
    const auto order = normalised(program_.order, static_cast<int>(units_));
    if (!order) return fail(Errc::corrupt, "{}", order.error().message);
    if (*order == program_.order) return {};
    return fail(Errc::corrupt,
                "an order of units lacks its list of forward or of backward, or is the usual one, which is "
                "left out");
  }

  Result<void> check_list() const {
    if (program_.passes.empty() && !program_.pass_segments.empty()) {
      return fail(Errc::corrupt, "a program without a list of passes has segments of passes");
    }
    if (!program_.passes.empty() && !(program_.body.runs.empty() && program_.last_round.runs.empty())) {
      return fail(Errc::corrupt, "a program with a list of passes has a body or a last round as well");
    }
    std::int64_t passes = 0;
    for (const PassRun& run : program_.passes) {
      const auto length = static_cast<std::int64_t>(run.passes.size());
      if (run.times < 1 || run.times > kMostPoints || length == 0 || length > kMostPoints ||
          run.round_step < 0 || run.round_step > program_.rounds) {
        return fail(Errc::corrupt, "{} passes are repeated {} times with rounds {} apart", length, run.times,
                    run.round_step);
      }
      passes += length * run.times;
      if (passes > kMostPoints) return fail(Errc::corrupt, "more than {} passes", kMostPoints);
      for (const UnitPass& pass : run.passes) {
        const std::int64_t last = pass.round + std::int64_t{run.times - 1} * run.round_step;
        if (pass.round >= 0 && last < program_.rounds) continue;
        return fail(Errc::corrupt, "a pass is in round {} of {}",
                    pass.round < 0 || pass.round >= program_.rounds ? pass.round : last, program_.rounds);
      }
    }
    if (passes == 0) return {};
    const auto checked = check_passes(unfold(program_.passes), static_cast<int>(units_), program_.rounds);
    if (!checked) return fail(Errc::corrupt, "{}", checked.error().message);
    return {};
  }

  /// Points name a pass of their round; other rounds than the entry's in lists alone.
  Result<void> check_rounds() const {
    const StepClock clock = program_.clock();
    const bool has_list = !program_.passes.empty();
    const auto has = [&](const TrainerPoint& point, std::int64_t round) {
      const std::int64_t of = round + point.round;
      if (!has_list && point.round != 0) return false;
      if (is_of_round(point.phase) && is_of_unit(point.phase)) return clock.pass_of(point, round) >= 0;
      return of >= 0 && of < program_.rounds;
    };
    const auto check = [&](const ProgramEntry& entry, std::int64_t round) -> Result<void> {
      std::vector<TrainerPoint> points{entry.ready, entry.needed};
      if (entry.takes) points.push_back(entry.takes->point);
      if (entry.gives) points.push_back(entry.gives->point);
      for (const TrainerPoint& point : points) {
        if (has(point, round)) continue;
        return fail(Errc::corrupt, "{} of round {} names '{}', which is not one of the step's points",
                    describe(entry), round, describe(point));
      }
      return {};
    };
    for (const ProgramSegment* segment : program_.segments()) {
      const bool is_listed = has_list && segment != &program_.epilogue;
      for (const ProgramRun& run : segment->runs) {
        const auto steps = static_cast<std::int64_t>(run.times) * segment->times;
        for (std::int64_t step = 0; step < (is_listed ? steps : 1); ++step) {
          // What follows the passes is launched in the last round.
          const auto unlisted = has_list ? program_.rounds - 1 : 0;
          const auto round = is_listed ? run.round + step / run.times * segment->round_step : unlisted;
          if (round < 0 || round >= program_.rounds) {
            return fail(Errc::corrupt, "an entry is in round {} of {}", round, program_.rounds);
          }
          for (const ProgramEntry& entry : run.entries) {
            TRY(check(shifted(entry, static_cast<int>(step % run.times) * run.unit_step), round));
          }
        }
      }
    }
    return {};
  }

  Result<std::int64_t> launches_of(const ProgramSegment& segment, std::int64_t most) const {
    if (segment.times < 0) return fail(Errc::corrupt, "a segment is done {} times", segment.times);
    std::int64_t launches = 0;
    for (const ProgramRun& run : segment.runs) {
      const auto entries = static_cast<std::int64_t>(run.entries.size());
      if (entries == 0 || run.times < 1 || run.times > kMostFileLaunches || run.unit_step < -kMostUnits ||
          run.unit_step > kMostUnits) {
        return fail(Errc::corrupt, "a run of {} entries is repeated {} times with units {} apart", entries,
                    run.times, run.unit_step);
      }
      // All repetitions lie between the first and the last.
      const std::int64_t furthest = std::int64_t{run.times - 1} * run.unit_step;
      if (furthest < -kMostUnits || furthest > kMostUnits) {
        return fail(Errc::corrupt, "{} entries are repeated {} times with units {} apart", entries, run.times,
                    run.unit_step);
      }
      for (const ProgramEntry& entry : run.entries) {
        TRY(check_entry(entry, 0));
        TRY(check_entry(entry, furthest));
      }
      launches += entries * run.times;
      if (launches > most / std::max(segment.times, 1)) {
        return fail(Errc::corrupt, "more than {} launches in a step", kMostFileLaunches);
      }
    }
    return launches * segment.times;
  }

  /// Checks the trainer's operations.
  Result<void> check_own_operations() const {
    std::int64_t count = 0;
    for (const OperationRun& run : program_.operations) {
      const auto length = static_cast<std::int64_t>(run.operations.size());
      if (length == 0 || run.times < 1 || run.times > kMostFileLaunches || run.unit_step < -kMostUnits ||
          run.unit_step > kMostUnits) {
        return fail(Errc::corrupt, "a run of {} operations is repeated {} times with units {} apart", length,
                    run.times, run.unit_step);
      }
      count += length * run.times;
      if (count > kMostFileLaunches / program_.rounds) {
        return fail(Errc::corrupt, "more than {} operations of the trainer's own in {} rounds",
                    kMostFileLaunches, program_.rounds);
      }
      for (const TrainerOperation& one : run.operations) {
        for (const std::int64_t units : {std::int64_t{0}, std::int64_t{run.times - 1} * run.unit_step}) {
          const std::int64_t unit = one.point.unit + units;
          const bool is_of_pass = one.point.phase == Phase::forward || one.point.phase == Phase::backward;
          if (is_of_pass && one.point.round == 0 && unit >= 0 && unit < units_) continue;
          return fail(Errc::corrupt,
                      "{} names unit {} and round {}; it belongs to forward or backward of {} units",
                      describe(one), unit, one.point.round, units_);
        }
        TRY(check_counts(one));
      }
    }
    return {};
  }

  /// Checks those of an entry or an operation.
  template <class Counted>
  static Result<void> check_counts(const Counted& counted) {
    std::int64_t members = 0;
    for (const CountRun& run : counted.counts.runs) {
      if (run.members < 1 || run.members > kMostRanks - members || run.elements < 0 ||
          run.elements > kMostElements) {
        return fail(Errc::corrupt, "{} has counts of {} members with {} elements each", describe(counted),
                    run.members, run.elements);
      }
      members += run.members;
    }
    if (members == 0) return fail(Errc::corrupt, "{} has counts of 0 members", describe(counted));
    return {};
  }

  Result<void> check_point(const ProgramEntry& entry, const TrainerPoint& point, std::int64_t units) const {
    const std::int64_t unit = is_of_unit(point.phase) ? point.unit + units : 0;
    if (unit >= 0 && (unit < units_ || !is_of_unit(point.phase))) return {};
    return fail(Errc::corrupt, "{} names unit {} in '{}', but there are {} units", describe(entry), unit,
                name_of(point.phase), units_);
  }

  Result<void> check_entry(const ProgramEntry& entry, std::int64_t units) const {
    for (const TrainerPoint* point : {&entry.ready, &entry.needed}) TRY(check_point(entry, *point, units));
    for (const auto* credit : {&entry.takes, &entry.gives}) {
      if (*credit) TRY(check_point(entry, (*credit)->point, units));
    }
    const std::int64_t unit = entry.tensor.kind == TensorKind::verdict ? 0 : entry.tensor.unit + units;
    if (unit < 0 || (entry.tensor.kind != TensorKind::verdict && unit >= units_)) {
      return fail(Errc::corrupt, "{} is in unit {}, but there are {} units", describe(entry), unit, units_);
    }
    if (entry.stream < 0 || entry.stream >= program_.streams) {
      return fail(Errc::corrupt, "{} is on stream {} of {}", describe(entry), entry.stream, program_.streams);
    }
    if (entry.operation == CollectiveKind::broadcast)
      return fail(Errc::corrupt, "{} is not one of a plan's collectives", describe(entry));
    TRY(check_counts(entry));
    for (const int recipe : {entry.first, entry.later}) {
      if (recipe >= 0 && static_cast<std::size_t>(recipe) < program_.recipes.size()) continue;
      return fail(Errc::corrupt, "{} has recipe {} of {}", describe(entry), recipe, program_.recipes.size());
    }
    if (entry.elements < 0 || entry.elements > kMostElements || entry.chunk < 0) {
      return fail(Errc::corrupt, "{} has {} elements in chunks of {}", describe(entry), entry.elements,
                  entry.chunk);
    }
    return {};
  }

  const Program& program_;
  const std::vector<int>& sizes_;
  std::int64_t units_ = 0;
};

}  // namespace

Result<void> check_limits(const ProgramFile& file) {
  const auto ranks = TRY(product_of(file.sizes));
  if (file.parts.empty()) return fail(Errc::corrupt, "the file has no programs");
  for (std::size_t i = 0; i < file.parts.size(); ++i) {
    const auto& part = file.parts[i];
    for (const auto& [first, last] : part.places) {
      if (first >= 0 && first <= last && last < ranks) continue;
      return fail(Errc::corrupt, "programs[{}] is for ranks {} to {}, but there are {}", i, first, last,
                  ranks);
    }
    const auto checked = Limits(part.program, file.sizes).check();
    if (!checked) return fail(checked.error().code, "programs[{}]: {}", i, checked.error().message);
  }
  return {};
}

}  // namespace troupe::core
