#pragma once

// What a user may choose: the trained parameters, and how they are trained, saved and loaded.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/boxes/sharded_tensor.hpp"
#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/plan/terms.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// One tensor of the model, as the trainer registers it. All ranks register the same tensors in the same
/// order, which should be that of forward.
struct ParameterSpec {
  std::string name{};
  std::vector<std::int64_t> shape{};
  DType dtype = DType::f32;  ///< f32, bf16 or f16; narrow parameters get fp32 masters
  bool weight_decay = true;
  std::size_t group = 0;          ///< index in TrainingOptions::groups
  bool shared_embedding = false;  ///< gets its own bucket
  StackingRule stacking{};        ///< how checkpoints store it and its optimizer state; empty: as it is
  /// The unit of forward that reads it, numbered from 0 without gaps: strategies that shard parameters or
  /// gradients gather and release them unit by unit. Without a unit, a parameter stays resident and may be
  /// read at any time; use this for one that several units read.
  std::optional<UnitIndex> unit{};
  /// False for a frozen parameter: it comes and goes with its unit and is saved, but nothing steps it, and it
  /// has no gradient, optimizer state or reduction.
  bool trainable = true;
  bool allow_shape_mismatch = false;  ///< a restore reads the common part of another shape; the rest is zero
  /// For tensor parallelism: the tensor of which `shape` is this rank's part, and where the part begins.
  /// Empty: all ranks of a tensor-parallel group keep the same values.
  std::vector<std::int64_t> global_shape{};
  std::vector<std::int64_t> offset{};  ///< as many axes as global_shape
  /// The group over which this gradient is summed, too, once per step, after its data-parallel reduction.
  /// "tp": each tensor-parallel rank keeps it whole, but sees only part of its inputs, and adds its own part.
  /// "pp": every pipeline stage has it under this name (is_copy on all but the first), and adds what its
  /// layers do with it (conditional embedders). Empty: each tensor-parallel rank adds the same gradient.
  std::string also_sum{};
  /// Another pipeline stage has the same parameter under the same name (tied embeddings), and counts it in
  /// norms. The trainer keeps the two equal. Without it, parameters of different stages have different names:
  /// a save of two under one name is refused.
  bool is_copy = false;
  /// For expert parallelism: it belongs to this rank's experts, under a name that no other rank of the
  /// expert-parallel group uses, but for those that keep other parts of it (expert_tensor_parallel). The
  /// others have as many, of the same shapes, under their own names.
  bool is_expert = false;
  /// For a trained bf16 parameter: its values are its fp32 masters rounded to microscaling blocks (MXFP8) of
  /// 32 neighbouring elements in f8_e4m3 or f8_e5m2, on any number of ranks, and it is gathered as such
  /// blocks: 33 bytes instead of 64. None: bf16's own values (docs/data-parallelism.md).
  std::optional<DType> gather_dtype{};

  std::int64_t elements() const;
  /// What checkpoints store for it, in the order of its rows.
  Result<std::vector<ShardedTensor>> stored_parts() const;
};

/// The order in which a trainer uses the units that ParameterSpec::unit numbers, each once in the forward of
/// a lane and once in its backward.
struct DeclaredOrder {
  std::vector<UnitIndex> forward{};   ///< empty: from 0 up
  std::vector<UnitIndex> backward{};  ///< empty: the reverse of forward

  bool empty() const { return forward.empty() && backward.empty(); }
  friend bool operator==(const DeclaredOrder&, const DeclaredOrder&) = default;
};

/// A collective that a trainer will post itself, in every microbatch of every lane, on a group of an axis
/// along which the model is cut: "tp", "cp" or "ep" (Session::group()).
struct DeclaredOperation {
  std::string group{};
  CollectiveKind kind = CollectiveKind::all_reduce;
  DType dtype = DType::f32;
  /// Elements that each member puts in, in group order: of a reduce_scatter and an all_to_all for all members
  /// together, of a broadcast if it is the root.
  std::vector<std::int64_t> counts{};
  /// The counts are upper bounds, because the actual ones depend on data. An all_gather or all_to_all of
  /// integers with fixed counts, declared earlier in the lane, tells members the actual counts.
  bool bounded = false;
  Pass pass = Pass::forward;        ///< or backward
  std::optional<UnitIndex> unit{};  ///< the unit it belongs to; none if no parameter has a unit
};

/// core/optimizer/optimizer.hpp says what each keeps and by which formula it steps.
enum class OptimizerKind : std::uint8_t { sgd, adam, adamw, lion, muon };

/// What Muon multiplies the learning rate by, for a matrix of m rows and n columns.
enum class MuonScale : std::uint8_t {
  original,         ///< sqrt(max(1, m / n))
  match_rms_adamw,  ///< 0.2 sqrt(max(m, n)), which suits learning rates of AdamW
};

/// Formulas and defaults are PyTorch's, and for Lion its authors'. Whatever is not given gets the optimizer's
/// own default.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9;                  ///< for adam, adamw and lion
  std::optional<double> beta2;         ///< 0.999 for adam and adamw, 0.99 for lion
  std::optional<double> epsilon;       ///< 1e-8 for adam and adamw, 1e-7 for muon
  std::optional<double> weight_decay;  ///< 0.01 for adamw, 0.1 for muon, 0 for the others
  std::optional<double> momentum;      ///< 0 for sgd, 0.95 for muon
  // For muon:
  bool nesterov = true;
  int newton_schulz_steps = 5;
  std::array<double, 3> coefficients{3.4445, -4.7750, 2.0315};  ///< of X, X Xt X and (X Xt)^2 X
  MuonScale scale = MuonScale::original;
};

/// Parameters that are stepped in the same way.
struct ParameterGroup {
  double learning_rate_factor = 1;  ///< multiplies the step's learning rate
  OptimizerOptions optimizer;
};

/// What to do about a parameter without a gradient.
enum class UnusedParameters : std::uint8_t {
  refuse,  ///< the step is not committed on any rank, and the error names the parameter
  zeros,   ///< it counts as zeros
};

/// What losses are multiplied by before backward, so that small gradients do not vanish in f16; gradients are
/// divided by it before they are measured, clipped and stepped.
enum class LossScale : std::uint8_t {
  none,
  fixed,
  dynamic,  ///< decreases after NaN or Inf gradients, increases after many finite ones
};

/// Defaults are those of PyTorch's GradScaler.
struct LossScaling {
  LossScale kind = LossScale::none;
  double scale = 65536;  ///< for `dynamic` the initial one
  // For dynamic:
  double growth = 2;     ///< multiplies the scale ...
  int interval = 2000;   ///< ... after this many steps in a row with finite gradients
  double backoff = 0.5;  ///< multiplies it after nonfinite gradients, when the step is not committed
  double minimum = 1;
  /// It decreases only once there were this many uncommitted steps since it last grew.
  int hysteresis = 1;
};

/// A layer of experts, as all ranks have it (Session::experts()): each token goes to a few of them.
struct ExpertLayerOptions {
  std::size_t experts = 0;  ///< on all ranks together; 0: the layer has none
  std::size_t choices = 2;  ///< experts of each token
  std::size_t tokens = 0;   ///< most tokens of a rank in a microbatch
  /// Choices of a microbatch beyond ceil(tokens * choices / experts * factor) of an expert are dropped, those
  /// with the least weights first; none: all are kept.
  std::optional<double> capacity_factor{};
  /// Rows that a rank's experts have room for in an exchange. When more would come no rank commits the step.
  /// None: for all that can come.
  std::optional<std::int64_t> most_rows{};
  /// Exchanges of rows that a rank may have open, each until its gradients have come back or the step is
  /// decided; 0: as many as a step has lanes and microbatches, for each of the rank's pieces of these.
  std::size_t exchanges = 0;
  /// By how much a committed step moves the router's biases, which even out the load without a loss. 0: it
  /// has none. Above 0 scores are sigmoids, and those of the chosen experts are divided by their sum.
  double bias_rate = 0;
  /// Without biases: scores are a softmax over all experts; if false, over the chosen ones only.
  bool score_before_choice = true;
};

/// What all ranks of a job must agree on.
struct TrainingOptions {
  Strategy strategy = Strategy::zero1;
  Numerics numerics = Numerics::ordered;
  /// Logical data-parallel workers; 0 means one per data-parallel rank, or, where ranks share lanes
  /// (context_parallel), one per group of ranks that share one. The result of `ordered` numerics depends on
  /// this number and not on the number of ranks.
  int lanes = 0;
  /// Microbatches that a lane accumulates in a step.
  int microbatches = 1;
  /// Reductions run during backward and gathers during the next forward; otherwise between them.
  bool overlap = true;
  /// Elements after which a bucket closes; none: max(40,000,000, 1,000,000 x ranks) with overlap, otherwise a
  /// single bucket.
  std::optional<std::int64_t> bucket_elements;
  /// Average over lanes and microbatches or, where lanes are given weights (Session::end_lane()), over their
  /// weights; otherwise sum.
  bool average = true;
  /// For lanes with weights: what the trainer has already divided losses and their gradients by, the same in
  /// every lane, so that they stay in range. Averages are multiplied by it.
  double loss_divisor = 1;
  /// `fast` numerics only: gradients are kept and sent in the parameters' dtype instead of f32.
  bool gradients_in_parameter_dtype = false;
  /// With gradients_in_parameter_dtype: parameters whose gradients are kept in f32 nevertheless, and rounded
  /// to their dtype when they are sent. Names, in which * stands for any characters and ? for one.
  std::vector<std::string> f32_gradients{};
  /// `fast` numerics with an average: what a collective adds it also divides by the number of its members,
  /// instead of gradients being divided before. Not where gradients are sent in a narrower dtype than theirs.
  bool average_in_collective = false;
  /// The dtype that gradients are sent in where it is narrower than theirs: f32 or bf16. `ordered` numerics:
  /// the gradient of each lane is rounded to it once, whether it is sent or not, so the bits do not depend on
  /// ranks; sums of several lanes are sent as they are. `fast` numerics: what a rank sends is rounded. Sums
  /// are f32 in both (docs/data-parallelism.md).
  DType wire_dtype = DType::f32;
  /// Ranks that share a model: those of tensor-parallel groups have neighbouring numbers, pipeline stages are
  /// furthest apart. The rest of the job is data parallel: lanes, strategies and optimizer instances apply to
  /// the ranks that keep the same part of the model. Session::group() has the groups "tp" and "pp".
  int tensor_parallel = 1;
  int pipeline_parallel = 1;
  /// Number of ranks that share each lane, for example because each holds part of every sequence. They are
  /// consecutive data-parallel ranks. Each goes through the same lanes and computes its own piece of them.
  /// The gradient of a lane is the sum of what they add, its loss the sum of what they report
  /// (Session::end_lane()). `average` divides by lanes and microbatches, not by pieces: a trainer divides
  /// what it sums over its own rows by all rows of the lane's microbatch. Strategies cut among all of them.
  /// Session::group() has "cp".
  int context_parallel = 1;
  /// Pieces of a lane; 0: one for each rank that shares it. With more, a multiple, each rank computes several
  /// neighbouring pieces and keeps their gradients apart, as sources (Session::sources()). The result of
  /// `ordered` numerics depends on lanes and on this number, not on the ranks that share a lane.
  int context_pieces = 0;
  int pieces_of_lane() const { return context_pieces == 0 ? context_parallel : context_pieces; }
  int own_pieces() const { return pieces_of_lane() / context_parallel; }
  /// Number of consecutive data-parallel ranks that experts (ParameterSpec::is_expert) are distributed over;
  /// it must divide the data-parallel ranks, those that share lanes included, and divide context_parallel or
  /// be a multiple of it. If it is greater, the lanes must be a multiple of the ranks with lanes of their
  /// own. Session::group() has "ep".
  int expert_parallel = 1;
  /// Ranks that each expert is cut over: as many as share a layer (0), or a multiple: then data-parallel
  /// neighbours keep other parts of the same experts (ParameterSpec::global_shape). Or a divisor: then the
  /// ranks that share a layer keep parts of different experts, under different names. Group "ep" has
  /// expert_ranks() members.
  int expert_tensor_parallel = 0;
  /// Parts of an expert that are on different data-parallel ranks.
  int expert_parts() const {
    return expert_tensor_parallel > tensor_parallel ? expert_tensor_parallel / tensor_parallel : 1;
  }
  /// Groups of the ranks that share a layer, of which each keeps different experts.
  int expert_columns() const {
    const bool is_less = expert_tensor_parallel > 0 && expert_tensor_parallel < tensor_parallel;
    return is_less ? tensor_parallel / expert_tensor_parallel : 1;
  }
  /// Consecutive data-parallel ranks that experts and their parts are distributed over.
  int expert_ranks() const { return expert_parallel * expert_parts() / expert_columns(); }
  /// For each layer of the model that all ranks have in common, pipeline stages included: Session::experts()
  /// has those with experts. A rank's experts of a layer are consecutive ones.
  std::vector<ExpertLayerOptions> experts{};
  /// Replicas of the sharded optimizer; must divide the number of data-parallel ranks, or, where these share
  /// lanes, the number of their groups. For hsdp and hfsdp the outer axis.
  int optimizer_instances = 1;
  /// Units whose full parameters, and whose full gradients, may exist at once where they are sharded: 1 for
  /// the least memory, 2 to gather the next unit while one computes.
  int gathered_units = 2;
  /// Elements that a rank may receive at once when gradients are exchanged (`ordered` numerics); larger
  /// exchanges are split. 0: all at once.
  std::int64_t staging_elements = 0;
  UnusedParameters unused_parameters = UnusedParameters::refuse;
  double clip_norm = 0;  ///< global L2 norm to clip at; 0: no clipping
  /// A step is called unusual, with a warning, whose gradients have a norm above this many times the largest
  /// of the first LargeGradients::kSamples steps (core/optimizer/large_gradients.hpp). 0: none is.
  double large_gradient_factor = 0;
  LossScaling loss_scaling;
  OptimizerOptions optimizer;
  /// How parameters are stepped: ParameterSpec::group is an index into this. Empty: one group, stepped by
  /// `optimizer`, which otherwise has no effect.
  std::vector<ParameterGroup> groups;
};

/// How ranks that need the same bytes of a checkpoint get them.
enum class LoadMode : std::uint8_t {
  automatic,  ///< whichever choose_load() expects to be faster
  read,       ///< each rank reads all that it needs
  exchange,   ///< each shard is read by one rank, which sends it to the others
};
std::string_view name_of(LoadMode mode) noexcept;

/// What a load is expected to meet. Assumptions, not measurements: every rank must make the same decision.
struct LoadCosts {
  double rank_bytes_per_second = 1.5e9;    ///< for one rank that reads and hashes, alone
  double storage_bytes_per_second = 8e9;   ///< for all ranks together, from the storage
  double exchange_bytes_per_second = 1e9;  ///< for one rank that sends or receives, while all do
};

/// How ranks load a checkpoint; the same on all of them.
struct LoadOptions {
  LoadMode mode = LoadMode::automatic;
  LoadCosts costs;  ///< for `automatic`
  /// What a rank sends, and what it receives, at once; an exchange takes four times this in memory.
  std::uint64_t exchange_bytes = std::uint64_t{8} << 20;
  static constexpr std::uint64_t kLeastStagingBytes = 512;
  /// On devices whose memory the host cannot reach: staging memory for a restore (also from local copies),
  /// whatever the size of the state. At least kLeastStagingBytes.
  std::uint64_t staging_bytes = std::uint64_t{32} << 20;

  /// Errc::invalid_argument names a value that is not possible.
  Result<void> check() const;
  /// A line of the job's configuration.
  std::string configuration() const;
};

/// Which checkpoints are kept when a new one is committed.
struct Retention {
  int keep_last = 0;            ///< the newest ones; 0: all
  std::int64_t keep_every = 0;  ///< and those whose step is a multiple of this; 0: no others

  friend bool operator==(const Retention&, const Retention&) = default;
};

/// What to do with a save that begins while another is not over.
enum class WhenBusy : std::uint8_t { queue, refuse };

/// How a session saves and loads; where is up to the world (RankWorld::storage).
struct CheckpointOptions {
  /// Most memory for state that is copied but not yet written; a smaller state takes less. A smaller budget
  /// makes the next update wait for the disk; nothing else depends on it.
  std::uint64_t staging_bytes = std::uint64_t{256} << 20;
  std::uint64_t chunk_bytes = std::uint64_t{8} << 20;  ///< staged and written at once
  Retention retention;
  WhenBusy when_busy = WhenBusy::queue;
  LoadOptions load;                                              ///< who reads what in a restore
  std::chrono::nanoseconds deadline = std::chrono::minutes(30);  ///< of a phase of a save, and of a restore
};

/// Ranks that keep copies of each other's state, ascending. Every rank of a job is in exactly one clique.
using Clique = std::vector<Rank>;

/// Copies of each rank's state on its own node and at the other ranks of its clique; where is up to the world
/// (RankWorld::local_storage). Saves are cheap and frequent, and only the newest are kept.
struct LocalTierOptions {
  /// Cliques of `factor` ranks, `jump` apart; see make_cliques.
  int jump = 1;
  int factor = 1;
  std::vector<Clique> cliques;  ///< instead of jump and factor; a partition of the world
  /// Memory for state that is copied but not yet written, as CheckpointOptions::staging_bytes.
  std::uint64_t staging_bytes = std::uint64_t{64} << 20;
  /// How much is staged and written at once, and how much a rank gives to one round of an exchange. An
  /// exchange takes twice this for every member of the clique.
  std::uint64_t chunk_bytes = std::uint64_t{4} << 20;
  int keep = 1;       ///< saves that are kept, the newest included
  bool sync = false;  ///< copies survive a loss of power; no effect in memory
  std::chrono::nanoseconds deadline = std::chrono::minutes(5);  ///< of a phase of a save, and of retrieval
};

}  // namespace troupe::core
