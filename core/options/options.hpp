#pragma once

// What a user may choose: the parameters that are trained, how they are trained, saved and loaded.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/boxes/stacking.hpp"
#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/plan/strategy.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// One tensor of the model, as the trainer registers it. All ranks register the same ones in the same order,
/// which should be the order of forward.
struct ParameterSpec {
  std::string name{};
  std::vector<std::int64_t> shape{};
  DType dtype = DType::f32;  ///< f32, bf16 or f16; narrow ones get an fp32 master copy
  bool weight_decay = true;
  std::size_t group = 0;          ///< of TrainingOptions::groups
  bool shared_embedding = false;  ///< gets a bucket of its own
  StackingRule stacking{};        ///< how checkpoints store it, and its optimizer state; empty: as it is
  /// The unit of forward that reads it, from 0 and without gaps: where strategies shard parameters or
  /// gradients they come and go unit by unit. None: it stays, and may be read at any moment; so for one that
  /// several units read.
  std::optional<UnitIndex> unit{};
  /// Otherwise it is frozen: it comes and goes as its unit does and is saved, but nothing steps it, and it
  /// has no gradient, optimizer state or reduction.
  bool trainable = true;
  bool allow_shape_mismatch = false;  ///< a restore takes another shape: what is common; the rest is zero
  /// Of tensor parallelism: the tensor of which `shape` is this rank's part, and where the part begins.
  /// Empty: all ranks of a tensor-parallel group keep the same values.
  std::vector<std::int64_t> global_shape{};
  std::vector<std::int64_t> offset{};  ///< as many axes as global_shape
  /// Of tensor parallelism: the group, "tp", over which the gradient is summed as well, because each of its
  /// ranks keeps all of the parameter and sees a part of what it is used for (norms under sequence
  /// parallelism). A rank adds its own part to the gradient; the session sums what all of them own of it once
  /// per step, after its last reduction. Empty: each rank of the group adds the same.
  std::string also_sum{};
  /// Another pipeline stage has the same parameter under the same name (tied embeddings), and counts it in
  /// norms. The trainer keeps them equal.
  bool is_copy = false;
  /// Of expert parallelism: it belongs to experts of this rank, under a name that no other rank of the
  /// expert-parallel group has. The others have as many, of the same shapes, under names of their own.
  bool is_expert = false;
  /// Of a trained bf16 parameter: its values are its main values rounded to microscaling blocks (MXFP8) of
  /// 32 neighbouring elements in f8_e4m3 or f8_e5m2, on any number of ranks, and it is gathered as these: 33
  /// bytes for 64. None: bf16's own values (docs/data-parallelism.md).
  std::optional<DType> gather_dtype{};

  std::int64_t elements() const;
  /// What checkpoints store of it, in the order of its rows.
  Result<std::vector<ShardedTensor>> stored_parts() const;
};

/// In which order a trainer uses the units that ParameterSpec::unit numbers, each of them once in the forward
/// of a lane and once in its backward.
struct DeclaredOrder {
  std::vector<UnitIndex> forward{};   ///< empty: from 0 up
  std::vector<UnitIndex> backward{};  ///< empty: forward from its end

  bool empty() const { return forward.empty() && backward.empty(); }
  friend bool operator==(const DeclaredOrder&, const DeclaredOrder&) = default;
};

/// A collective that a trainer will post itself, in every microbatch of every lane, on a group of an axis
/// along which the model is cut: "tp", "cp" or "ep" (Session::group()).
struct DeclaredOperation {
  enum class Kind : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast };
  enum class Pass : std::uint8_t { forward, backward };

  std::string group{};
  Kind kind = Kind::all_reduce;
  DType dtype = DType::f32;
  /// Elements that each member puts in, in group order: of a reduce_scatter and an all_to_all for all members
  /// together, of a broadcast if it is the root.
  std::vector<std::int64_t> counts{};
  /// They are the most that a member puts in, which depends on data. An all_gather or all_to_all of integers
  /// with fixed counts, declared before it in the lane, tells the members how much it is.
  bool bounded = false;
  Pass pass = Pass::forward;
  std::optional<UnitIndex> unit{};  ///< that it is a part of; none where no parameter names a unit
};

/// core/optimizer/optimizer.hpp says what each keeps and by which formula it steps.
enum class OptimizerKind : std::uint8_t { sgd, adam, adamw, lion, muon };

/// What Muon multiplies the learning rate of a matrix of m rows and n columns by.
enum class MuonScale : std::uint8_t {
  original,         ///< sqrt(max(1, m / n))
  match_rms_adamw,  ///< 0.2 sqrt(max(m, n)), with which learning rates of AdamW fit
};

/// Formulas and defaults are those of PyTorch, and of Lion those of its authors. What is not given is the
/// optimizer's own default.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9;                  ///< of adam, adamw and lion
  std::optional<double> beta2;         ///< 0.999 of adam and adamw, 0.99 of lion
  std::optional<double> epsilon;       ///< 1e-8 of adam and adamw, 1e-7 of muon
  std::optional<double> weight_decay;  ///< 0.01 of adamw, 0.1 of muon, 0 of the others
  std::optional<double> momentum;      ///< 0 of sgd, 0.95 of muon
  // Of muon:
  bool nesterov = true;
  int newton_schulz_steps = 5;
  std::array<double, 3> coefficients{3.4445, -4.7750, 2.0315};  ///< of X, X Xt X and (X Xt)^2 X
  MuonScale scale = MuonScale::original;
};

/// Parameters that are stepped alike.
struct ParameterGroup {
  double learning_rate_factor = 1;  ///< multiplies the step's learning rate
  OptimizerOptions optimizer;
};

/// What a parameter without a gradient means.
enum class UnusedParameters : std::uint8_t {
  refuse,  ///< the step is not committed on any rank, and the error names the parameter
  zeros,   ///< it counts as zeros
};

/// What losses are multiplied by before backward, so that small gradients do not vanish in f16; gradients are
/// divided by it before they are measured, clipped and stepped.
enum class LossScale : std::uint8_t {
  none,
  fixed,
  dynamic,  ///< smaller after gradients that are NaN or Inf, larger after many that are not
};

/// Defaults are those of PyTorch's GradScaler.
struct LossScaling {
  LossScale kind = LossScale::none;
  double scale = 65536;  ///< of `dynamic` the first one
  // Of dynamic:
  double growth = 2;     ///< multiplies the scale ...
  int interval = 2000;   ///< ... after this many steps in a row with finite gradients
  double backoff = 0.5;  ///< multiplies it after gradients that are not, and the step is not committed
  double minimum = 1;
  /// It becomes smaller only with this many steps that are not committed since it last grew.
  int hysteresis = 1;
};

/// What all ranks of a job must have in common.
struct TrainingOptions {
  Strategy strategy = Strategy::zero1;
  Numerics numerics = Numerics::ordered;
  /// Logical data-parallel workers; 0 means one per data-parallel rank, or where ranks share lanes
  /// (context_parallel) one for those that do. The result of `ordered` numerics
  /// depends on this number and not on the number of ranks.
  int lanes = 0;
  /// Microbatches that a lane accumulates in a step.
  int microbatches = 1;
  /// Reductions run under backward and gathers under the next forward; otherwise between them.
  bool overlap = true;
  /// Elements after which a bucket closes; none: max(40,000,000, 1,000,000 x ranks) with overlap, else one
  /// bucket.
  std::optional<std::int64_t> bucket_elements;
  /// Average over lanes and microbatches; otherwise sum.
  bool average = true;
  /// `fast` numerics only: gradients kept and sent in the parameters' dtype instead of f32.
  bool gradients_in_parameter_dtype = false;
  /// Gradients are sent in it where it is narrower than they are: f32 or bf16. `ordered` numerics: the
  /// gradient of each lane is rounded to it once, whether it is sent or not, so its bits do not depend on
  /// ranks; what is the sum of several lanes is sent as it is. `fast` numerics: what a rank sends is rounded.
  /// Sums are f32 in both (docs/data-parallelism.md).
  DType wire_dtype = DType::f32;
  /// Ranks that share a model: those of tensor-parallel groups have neighbouring numbers, pipeline stages are
  /// furthest apart. The rest of the job is data parallel: lanes, strategies and optimizer instances are of
  /// the ranks that keep the same part of the model. Session::group() has the groups "tp" and "pp".
  int tensor_parallel = 1;
  int pipeline_parallel = 1;
  /// Ranks that share each lane, as those that keep a part of each sequence do: neighbours among the
  /// data-parallel ranks of one part of the model, which then are lanes' ranks times these. Each goes through
  /// the same lanes with its piece of them. The gradient of a lane is the sum of what they add, and its loss
  /// the sum of what they say (Session::end_lane()). `average` divides by lanes and microbatches, not by
  /// pieces: a trainer divides what it sums over its own rows by all rows of the lane's microbatch.
  /// Strategies cut among all of them, and the result of `ordered` numerics depends on lanes and on this
  /// number. Session::group() has "cp".
  int context_parallel = 1;
  /// Ranks among which experts are spread (ParameterSpec::is_expert), neighbours among the data-parallel
  /// ones, whose number it divides. Lanes must divide by the data-parallel ranks then. Session::group() has
  /// "ep".
  int expert_parallel = 1;
  /// Replicas of the sharded optimizer; must divide the number of data-parallel ranks, or where these share
  /// lanes that of their groups. Of hsdp and hfsdp the outer axis.
  int optimizer_instances = 1;
  /// Units whose full parameters, and whose full gradients, may exist at once where they are sharded: 1 for
  /// the least memory, 2 to gather the next unit while one computes.
  int gathered_units = 2;
  /// Elements that a rank may receive at once when gradients are exchanged (`ordered` numerics); larger
  /// exchanges go in parts. 0: all at once.
  std::int64_t staging_elements = 0;
  UnusedParameters unused_parameters = UnusedParameters::refuse;
  double clip_norm = 0;  ///< global L2 norm to clip at; 0: no clipping
  LossScaling loss_scaling;
  OptimizerOptions optimizer;
  /// Which parameters are stepped how: ParameterSpec::group is an index of these. None: one group, stepped by
  /// `optimizer`, which has no say otherwise.
  std::vector<ParameterGroup> groups;
};

/// How ranks that need the same bytes of a checkpoint come by them.
enum class LoadMode : std::uint8_t {
  automatic,  ///< what choose_load() expects to be faster
  read,       ///< each rank reads all that it needs
  exchange,   ///< each shard is read by one rank and goes from it to the others
};
std::string_view name_of(LoadMode mode) noexcept;

/// What a load is expected to meet. Assumptions, not measurements: every rank must come to the same decision.
struct LoadCosts {
  double rank_bytes_per_second = 1.5e9;    ///< that one rank reads and hashes, alone
  double storage_bytes_per_second = 8e9;   ///< that all ranks together get from the storage
  double exchange_bytes_per_second = 1e9;  ///< that one rank sends or receives, while all do
};

/// How ranks load a checkpoint; the same on all of them.
struct LoadOptions {
  LoadMode mode = LoadMode::automatic;
  LoadCosts costs;  ///< for `automatic`
  /// What a rank sends, and what it receives, at once; an exchange takes four times this.
  std::uint64_t exchange_bytes = std::uint64_t{8} << 20;
  static constexpr std::uint64_t kLeastStagingBytes = 512;
  /// On devices whose memory the host does not reach: what a restore, also one of local copies, takes of
  /// their staging memory, whatever the size of the state. At least kLeastStagingBytes.
  std::uint64_t staging_bytes = std::uint64_t{32} << 20;

  /// Errc::invalid_argument names what cannot be.
  Result<void> check() const;
  /// A line of the job's configuration.
  std::string configuration() const;
};

/// Which checkpoints stay when a new one is committed.
struct Retention {
  int keep_last = 0;            ///< the newest ones; 0: all
  std::int64_t keep_every = 0;  ///< and those whose step is a multiple of this; 0: no others

  friend bool operator==(const Retention&, const Retention&) = default;
};

/// What to do with a save that begins while another one is not over.
enum class WhenBusy : std::uint8_t { queue, refuse };

/// How a session saves and loads; where is the world's business (RankWorld::storage).
struct CheckpointOptions {
  /// Most memory for state that is copied but not written yet; a smaller state takes less. A smaller budget
  /// makes the next update wait for the disk; nothing else depends on it.
  std::uint64_t staging_bytes = std::uint64_t{256} << 20;
  std::uint64_t chunk_bytes = std::uint64_t{8} << 20;  ///< staged and written at once
  Retention retention;
  WhenBusy when_busy = WhenBusy::queue;
  LoadOptions load;                                              ///< who reads what in a restore
  std::chrono::nanoseconds deadline = std::chrono::minutes(30);  ///< of a phase of a save, and of a restore
};

/// Ranks that keep copies of each other's state, ascending. Every rank of a job is in exactly one.
using Clique = std::vector<Rank>;

/// Copies of every rank's state close to it, kept by the ranks of a clique for each other; where is the
/// world's business (RankWorld::local_storage). Saves are cheap and frequent, and only the newest stay.
struct LocalTierOptions {
  /// Cliques of `factor` ranks, `jump` apart; see make_cliques.
  int jump = 1;
  int factor = 1;
  std::vector<Clique> cliques;  ///< instead of jump and factor; a partition of the world
  /// Memory for state that is copied but not written yet, as CheckpointOptions::staging_bytes.
  std::uint64_t staging_bytes = std::uint64_t{64} << 20;
  /// Staged and written at once, and what a rank gives to a round of an exchange. An exchange takes twice
  /// this for every member of the clique.
  std::uint64_t chunk_bytes = std::uint64_t{4} << 20;
  int keep = 1;       ///< saves that stay, the newest included
  bool sync = false;  ///< copies survive the loss of power; without meaning for memory
  std::chrono::nanoseconds deadline = std::chrono::minutes(5);  ///< of a phase of a save, and of retrieval
};

}  // namespace troupe::core
