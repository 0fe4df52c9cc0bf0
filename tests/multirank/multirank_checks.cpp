// One rank of four: multirank_checks CHECK [CHECKPOINTS]. Says what it finds, and exits with 1 when that is
// not what it should be. Expected values follow from the ranks' numbers, or from fp64 arithmetic over what
// all ranks have.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/session/group_data.hpp"
#include "actors/session/session.hpp"
#include "actors/shell/process_world.hpp"
#include "actors/shell/rank_world.hpp"
#include "actors/simulation/simulation.hpp"
#include "actors/simulation/tiny_trainer.hpp"
#include "core/errors.hpp"
#include "core/random.hpp"
#include "core/values/value_text.hpp"

namespace troupe {
namespace {

using actors::GroupData;
using core::DType;
using core::Result;
using core::Value;

/// What a check found wrong, one line each.
class Findings {
 public:
  void expect(bool holds, const std::string& what) {
    if (!holds) lines_.push_back(what);
  }
  template <class T>
  void expect_equal(const T& found, const T& expected, const std::string& what) {
    expect(found == expected, what);
  }
  void expect_near(double found, double expected, double relative, double absolute, const std::string& what) {
    if (std::abs(found - expected) <= absolute + relative * std::abs(expected)) return;
    // If there are very many, the first few say enough.
    if (lines_.size() < 5) lines_.push_back(fmt::format("{}: expected {}, found {}", what, expected, found));
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

/// This rank with its groups: two neighbours, every second one, all.
struct Company {
  int rank;
  GroupData pair, across, all;
};

core::HostTensor integers(std::vector<std::int64_t> values, core::Shape shape) {
  core::HostTensor tensor{DType::i64, std::move(shape),
                          std::vector<std::byte>(values.size() * sizeof values[0])};
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

core::TensorDict batch_of(int rank) {
  const std::int64_t k = rank;
  const auto labels = rank % 2 == 0 ? std::vector<Value>{"a", "b"} : std::vector<Value>{"b", "a"};
  return core::TensorDict::create({{"obs", integers({k, 2 * k + 1, 3 * k, 4 * k + 1}, {2, 2})}},
                                  {{"labels", labels}}, Value::Map{{"info", "test_info"}})
      .value();
}

Result<void> gathered_batches(Company& company, Findings& findings) {
  const auto gathered = TRY(company.across.all_gather(batch_of(company.rank)));
  const bool even = company.rank % 2 == 0;
  const auto expected =
      even ? integers({0, 1, 0, 1, 2, 5, 6, 9}, {4, 2}) : integers({1, 3, 3, 5, 3, 7, 9, 13}, {4, 2});
  const auto labels = even ? std::vector<Value>{"a", "b", "a", "b"} : std::vector<Value>{"b", "a", "b", "a"};
  findings.expect_equal(gathered.rows(), std::int64_t{4}, "the batch has four rows");
  findings.expect_equal(gathered.tensors().at("obs"), expected, "obs is what both ranks had, in group order");
  findings.expect_equal(gathered.arrays().at("labels"), labels, "labels are those of both ranks");
  findings.expect(Value(gathered.meta()) == Value(Value::Map{{"info", "test_info"}}), "meta stays");
  return {};
}

/// Ragged rows, another dtype, a name that one rank lacks: the same Error everywhere, and the group goes on.
Result<void> batches_that_differ(Company& company, Findings& findings) {
  const bool odd_one = company.rank == 2;
  const auto refused = [&](core::TensorDict::Tensors tensors, const std::string& name) -> Result<void> {
    const auto found = company.all.all_gather(TRY(core::TensorDict::create(std::move(tensors))));
    findings.expect(!found && found.error().code == core::Errc::mismatch, name + " is refused as a mismatch");
    findings.expect(!found && found.error().message.find(name) != std::string::npos, name + " is named");
    const auto text = found ? std::string() : found.error().message;
    const auto all = TRY(company.all.all_gather(std::as_bytes(std::span(text))));
    findings.expect(std::all_of(all.begin(), all.end(), [&](const auto& one) { return one == all.front(); }),
                    name + ": all ranks say the same");
    return {};
  };
  TRY(refused({{"ragged", odd_one ? integers({1, 2, 3}, {1, 3}) : integers({1, 2}, {1, 2})}}, "ragged"));
  core::HostTensor other{DType::f64, {1}, std::vector<std::byte>(8)};
  TRY(refused({{"typed", odd_one ? other : integers({1}, {1})}}, "typed"));
  core::TensorDict::Tensors tensors{{"common", integers({1}, {1})}};
  if (!odd_one) tensors["missing"] = integers({1}, {1});
  TRY(refused(std::move(tensors), "missing"));
  findings.expect(company.all.all_gather(batch_of(0)).has_value(), "the group goes on");
  return {};
}

Result<void> lists_of_values(Company& company, Findings& findings) {
  const std::int64_t k = company.rank;
  const auto gathered = TRY(company.all.all_gather(
      Value::Map{{"loss", Value::List{k, k + 1, k + 2}}, {"grad_norm", k}}, core::MissingNames::refused));
  const auto list = [](std::int64_t a, std::int64_t b, std::int64_t c) {
    return Value(Value::List{a, b, c});
  };
  const Value expected = Value::Map{
      {"loss", Value::List{list(0, 1, 2), list(1, 2, 3), list(2, 3, 4), list(3, 4, 5)}},
      {"grad_norm", Value::List{std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, std::int64_t{3}}}};
  findings.expect(Value(gathered) == expected, "lists of what all ranks had, by name");
  return {};
}

Result<void> values_that_differ(Company& company, Findings& findings) {
  // Rank 3 has nothing, rank 1 a name of its own, rank 2 values of other kinds.
  Value::Map own;
  if (company.rank < 3) own.set("x", company.rank == 2 ? Value("text") : Value(company.rank));
  if (company.rank == 1) own.set("only", nullptr);
  const auto shorter = TRY(company.all.all_gather(own, core::MissingNames::shorter));
  findings.expect(
      Value(shorter) == Value(Value::Map{{"x", Value::List{0, 1, "text"}}, {"only", Value::List{nullptr}}}),
      "shorter lists without what is missing");
  const auto filled = TRY(company.all.all_gather(own, core::MissingNames::null));
  findings.expect(
      Value(filled) == Value(Value::Map{{"x", Value::List{0, 1, "text", nullptr}},
                                        {"only", Value::List{nullptr, nullptr, nullptr, nullptr}}}),
      "null where it is missing");
  const auto strict = company.all.all_gather(own, core::MissingNames::refused);
  findings.expect(!strict && strict.error().code == core::Errc::mismatch, "refused where asked for");
  const auto empty = TRY(company.all.all_gather(Value::Map{}, core::MissingNames::refused));
  findings.expect(empty.empty(), "nothing of nothing");
  return {};
}

Result<void> masked_moments(Company& company, Findings& findings) {
  const auto x_of = [](int rank) {
    std::vector<float> x(100 + 10 * static_cast<std::size_t>(rank));
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = core::CounterRandom(7, "x", core::Step{rank}, core::Lane{0}).normal(i);
    return x;
  };
  const auto mask_of = [](int rank, std::size_t size) {
    std::vector<float> mask(size);
    for (std::size_t i = 0; i < size; ++i)
      mask[i] = (i + static_cast<std::size_t>(rank)) % 3 == 0 ? 0.0F : 1.0F;
    return mask;
  };
  const auto check = [&](GroupData& group, const std::vector<int>& members) -> Result<void> {
    auto x = x_of(company.rank);
    const auto mask = mask_of(company.rank, x.size());
    const auto found = TRY(group.masked_moments(x, mask, true));
    double count = 0, sum = 0, squares = 0;
    for (const int member : members) {
      const auto other = x_of(member);
      const auto weights = mask_of(member, other.size());
      for (std::size_t i = 0; i < other.size(); ++i) {
        count += weights[i];
        sum += weights[i] * other[i];
      }
    }
    for (const int member : members) {
      const auto other = x_of(member);
      const auto weights = mask_of(member, other.size());
      for (std::size_t i = 0; i < other.size(); ++i)
        squares += weights[i] * std::pow(other[i] - sum / count, 2);
    }
    findings.expect_near(found.mean, sum / count, 1e-5, 1e-8, "mean");
    findings.expect_near(found.variance, squares / (count - 1), 1e-5, 1e-8, "variance");
    return {};
  };
  const int r = company.rank;
  TRY(check(company.pair, {r / 2 * 2, r / 2 * 2 + 1}));
  return check(company.all, {0, 1, 2, 3});
}

/// Logits that a group shares, and what fp64 over the whole vocabulary gives.
struct Vocabulary {
  std::int64_t rows, columns;
  std::vector<float> logits;
  std::vector<std::int64_t> targets;
  std::vector<float> upstream;  ///< this rank's own

  Vocabulary(std::int64_t r, std::int64_t c, int rank, double scale) : rows(r), columns(c) {
    const core::CounterRandom random(11, "logits"), choice(11, "targets"),
        own(11, "upstream", core::Step{rank}, core::Lane{0});
    logits.resize(static_cast<std::size_t>(r * c));
    for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = random.normal(i) * static_cast<float>(scale);
    for (std::uint64_t row = 0; row < static_cast<std::uint64_t>(r); ++row) {
      targets.push_back(static_cast<std::int64_t>(choice.below(static_cast<std::uint64_t>(c), row)));
      upstream.push_back(own.normal(row));
    }
  }

  std::vector<float> slice(std::int64_t first, std::int64_t count) const {
    std::vector<float> part;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto begin = logits.begin() + row * columns + first;
      part.insert(part.end(), begin, begin + count);
    }
    return part;
  }
};

struct Bound {
  double relative, absolute, norm;
};

void compare(const Vocabulary& v, std::int64_t first, std::int64_t count,
             const GroupData::VocabResults& found, std::span<const float> gradient, const Bound& bound,
             Findings& findings) {
  double difference = 0, size = 0;
  for (std::int64_t row = 0; row < v.rows; ++row) {
    const auto r = static_cast<std::size_t>(row);
    const float* x = v.logits.data() + row * v.columns;
    const double m = *std::max_element(x, x + v.columns);
    double z = 0, t = 0;
    for (std::int64_t i = 0; i < v.columns; ++i) {
      const double e = std::exp(x[i] - m);
      z += e;
      t += e * (x[i] - m);
    }
    const double entropy = std::log(z) - t / z;
    findings.expect_near(found.entropy[r], entropy, bound.relative, bound.absolute, "entropy");
    findings.expect_near(found.log_probabilities[r], x[v.targets[r]] - m - std::log(z), bound.relative,
                         bound.absolute, "log-probability");
    for (std::int64_t i = 0; i < count; ++i) {
      const double log_p = x[first + i] - m - std::log(z);
      const double expected = -std::exp(log_p) * (log_p + entropy) * v.upstream[r];
      const double g = gradient[static_cast<std::size_t>(row * count + i)];
      findings.expect_near(g, expected, bound.relative, bound.absolute, "gradient");
      difference += (g - expected) * (g - expected);
      size += expected * expected;
    }
  }
  findings.expect(std::isfinite(difference) && std::sqrt(difference) <= bound.norm * std::sqrt(size),
                  fmt::format("the gradient is {} away, in norm", std::sqrt(difference / size)));
}

Result<void> check_vocabulary(const Vocabulary& v, GroupData& group, int place, int ranks, DType dtype,
                              const Bound& bound, Findings& findings) {
  const std::int64_t first = v.columns * place / ranks, count = v.columns * (place + 1) / ranks - first;
  const auto part = v.slice(first, count);
  std::vector<std::uint16_t> narrow;
  for (const float value : part) narrow.push_back(core::float_to_bf16(value));
  const auto bytes = dtype == DType::f32 ? std::as_bytes(std::span(part)) : std::as_bytes(std::span(narrow));
  const std::vector<std::byte> before(bytes.begin(), bytes.end());
  const core::LogitsShard shard{dtype, bytes, v.rows, count, first};

  const auto found = TRY(group.vocab(shard, v.targets));
  const auto gradient = core::vocab_entropy_gradient(shard, found.max, found.sums, v.upstream);
  compare(v, first, count, found, gradient, bound, findings);
  // Log-probabilities have been computed from these logits: they are as they were, and the entropy too.
  findings.expect(std::equal(before.begin(), before.end(), bytes.begin()), "the logits are as they were");
  findings.expect_equal(TRY(group.vocab(shard, {})).entropy, found.entropy,
                        "the entropy alone has the same bits");
  return {};
}

constexpr Bound kFloat{1.3e-6, 1e-5, 1e-5};
/// Against logits that were rounded to bf16 before: their products are in f32 again.
constexpr Bound kNarrow{1e-5, 1e-5, 1e-5};

Result<void> vocabulary_of_two(Company& company, Findings& findings) {
  const Vocabulary v(256, 155'136, company.rank, 1);
  return check_vocabulary(v, company.pair, company.rank % 2, 2, DType::f32, kFloat, findings);
}

Result<void> vocabulary_of_four(Company& company, Findings& findings) {
  // No multiple of the ranks; then in bf16; then with logits of which one takes all.
  const Vocabulary plain(64, 1003, company.rank, 1);
  TRY(check_vocabulary(plain, company.all, company.rank, 4, DType::f32, kFloat, findings));
  Vocabulary rounded = plain;
  for (float& x : rounded.logits) x = core::bf16_to_float(core::float_to_bf16(x));
  TRY(check_vocabulary(rounded, company.all, company.rank, 4, DType::bf16, kNarrow, findings));
  Vocabulary extreme(16, 1003, company.rank, 1);
  for (std::int64_t row = 0; row < extreme.rows; ++row) {
    extreme.logits[static_cast<std::size_t>(row * 1003 + row * 60)] = 1e4F;
    extreme.logits[static_cast<std::size_t>(row * 1003 + row * 60 + 1)] = -1e4F;
  }
  const auto first = 1003 * company.rank / 4, count = 1003 * (company.rank + 1) / 4 - first;
  const auto part = extreme.slice(first, count);
  const auto found =
      TRY(company.all.vocab({DType::f32, std::as_bytes(std::span(part)), 16, count, first}, extreme.targets));
  for (const float entropy : found.entropy)
    findings.expect_near(entropy, 0, 0, 1e-5, "entropy of one certain word");
  for (const float one : found.log_probabilities)
    findings.expect(std::isfinite(one), "log-probabilities are finite");
  return {};
}

Result<void> one_rank_fails(Company& company, Findings& findings) {
  fmt::print("process {}\n", getpid());
  std::fflush(stdout);
  TRY(company.all.all_gather(Value::Map{}, core::MissingNames::refused));
  findings.expect(company.rank != 2, "rank 2 fails, as it was asked to");
  if (company.rank == 2) return core::fail(core::Errc::internal, "rank 2 fails, as it was asked to");
  // The others wait for it.
  TRY(company.all.all_gather(Value::Map{}, core::MissingNames::refused));
  return {};
}

/// A job of these ranks whose weights are gathered as blocks has the parameters of one simulated rank's.
Result<void> trained_in_blocks(actors::RankWorld& world, Findings& findings) {
  actors::TinyTrainerOptions options;
  options.gather_dtype = DType::f8_e4m3;
  options.width = 3000;
  options.session.training.lanes = 4;
  auto alone = options;
  options.session.training.strategy = core::Strategy::hfsdp;
  options.session.training.optimizer_instances = 2;
  std::uint64_t expected = 0;
  actors::SimulationOptions one;
  one.ranks = {1};
  const auto report = actors::Simulation(one).run([&](actors::SimulatedRank& rank) -> Result<void> {
    expected = TRY(actors::simulate_tiny_rank(rank, alone)).state_hash;
    return {};
  });
  TRY(report.results.at(0));
  const auto found = TRY(actors::train_tiny(world, options, [](std::chrono::nanoseconds) {}));
  findings.expect(found.state_hash == expected, "parameters are those of one rank");
  return {};
}

Result<void> take_step(actors::Session& session) {
  TRY(session.begin_step(0.1));
  for (const core::Lane lane : session.lanes()) {
    TRY(session.begin_lane(lane));
    TRY(session.before_use({0}));
    TRY(session.begin_backward());
    TRY(session.before_use({0}));
    TRY(session.gradient_ready({0}));
    TRY(session.end_lane(0));
  }
  TRY(session.finish_step());
  return {};
}

/// Rank 1 alone calls something between two steps: all ranks are told of it long before any deadline.
Result<void> called_by_one_rank(actors::RankWorld& world, Findings& findings, const char* name,
                                Result<void> (*call)(actors::Session&)) {
  const auto begin = std::chrono::steady_clock::now();
  actors::SessionOptions options;
  options.training.strategy = core::Strategy::zero3;
  options.training.unused_parameters = core::UnusedParameters::zeros;
  core::ParameterSpec weight{.name = "weight", .shape = {64}};
  weight.unit = core::UnitIndex{0};
  auto session = TRY(actors::Session::join(world, options, {weight}));
  const auto course = [&]() -> Result<void> {
    if (std::string_view(name) != "restore()") TRY(take_step(*session));
    if (world.rank().value == 1) TRY(call(*session));
    for (int step = 0; step < 3; ++step) TRY(take_step(*session));
    return session->leave();
  };
  const auto done = course();
  const auto text = done ? std::string("no error") : done.error().message;
  findings.expect(text.find(name) != std::string::npos, fmt::format("expected {} in: {}", name, text));
  findings.expect(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20), "within seconds");
  return {};
}

Result<void> save_alone(actors::RankWorld& world, Findings& findings) {
  return called_by_one_rank(world, findings, "save()", [](actors::Session& session) -> Result<void> {
    TRY(session.save());
    return session.wait_saves();
  });
}

Result<void> restore_alone(actors::RankWorld& world, Findings& findings) {
  return called_by_one_rank(world, findings, "restore()", [](actors::Session& session) -> Result<void> {
    TRY(session.restore());
    return {};
  });
}

Result<void> leave_alone(actors::RankWorld& world, Findings& findings) {
  return called_by_one_rank(world, findings, "leave()",
                            [](actors::Session& session) { return session.leave(); });
}

/// Whether the ranks' collectives find it or their calls do.
Result<void> evaluation_alone(actors::RankWorld& world, Findings& findings) {
  return called_by_one_rank(world, findings, "rank 1", [](actors::Session& session) -> Result<void> {
    TRY(session.begin_evaluation());
    TRY(session.before_use({0}));
    return session.end_evaluation();
  });
}

using Check = std::function<Result<void>(actors::RankWorld&, Findings&)>;

/// A check of what members of a session's groups give each other.
Check of_groups(Result<void> (*check)(Company&, Findings&)) {
  return [check](actors::RankWorld& world, Findings& findings) -> Result<void> {
    actors::SessionOptions options;
    options.groups = {{"pair", {{{0}, {1}}, {{2}, {3}}}},
                      {"across", {{{0}, {2}}, {{1}, {3}}}},
                      {"all", {{{0}, {1}, {2}, {3}}}}};
    auto session = TRY(actors::Session::join(world, options, {{.name = "unused", .shape = {4}}}));
    const auto group = [&](const char* of) -> Result<GroupData> {
      return GroupData(*TRY(session->group(of)), world.device());
    };
    auto pair = TRY(group("pair")), across = TRY(group("across")), all = TRY(group("all"));
    Company company{world.rank().value, std::move(pair), std::move(across), std::move(all)};
    TRY(check(company, findings));
    return session->leave();
  };
}

const std::map<std::string, Check> kChecks{{"batches", of_groups(gathered_batches)},
                                           {"batches_that_differ", of_groups(batches_that_differ)},
                                           {"values", of_groups(lists_of_values)},
                                           {"values_that_differ", of_groups(values_that_differ)},
                                           {"moments", of_groups(masked_moments)},
                                           {"vocabulary_of_two", of_groups(vocabulary_of_two)},
                                           {"vocabulary_of_four", of_groups(vocabulary_of_four)},
                                           {"one_rank_fails", of_groups(one_rank_fails)},
                                           {"save_alone", save_alone},
                                           {"restore_alone", restore_alone},
                                           {"leave_alone", leave_alone},
                                           {"evaluation_alone", evaluation_alone},
                                           {"blocks", trained_in_blocks}};

Result<void> run(const std::string& name, const std::string& folder) {
  const auto check = kChecks.find(name);
  if (check == kChecks.end()) return core::fail(core::Errc::invalid_argument, "no check '{}'", name);
  actors::ProcessWorldOptions options;
  options.checkpoint_directory = folder;
  auto world = TRY(actors::ProcessWorld::create(options));
  if (world->world_size().value != 4)
    return core::fail(core::Errc::invalid_argument, "expected 4 ranks, found {}", world->world_size().value);
  Findings findings;
  TRY(check->second(*world, findings));
  for (const auto& line : findings.lines()) fmt::print("{}: {}\n", name, line);
  if (!findings.lines().empty()) return core::fail(core::Errc::internal, "{}: not as it should be", name);
  fmt::print("{}: good\n", name);
  return {};
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  const auto done = troupe::run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
  if (!done) fmt::print(stderr, "{}\n", done.error().message);
  return done ? 0 : 1;
}
