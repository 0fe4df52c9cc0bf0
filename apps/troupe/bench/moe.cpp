#include "apps/troupe/bench/moe.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "apps/command_line/say.hpp"
#include "apps/troupe/bench/children.hpp"
#include "core/errors.hpp"
#include "core/experts/dispatch.hpp"
#include "core/experts/exchange.hpp"
#include "core/experts/router.hpp"
#include "core/experts/row_move.hpp"
#include "core/random.hpp"
#include "gpu/collective/rendezvous_file.hpp"
#include "gpu/collective/shared_memory/shared_memory_backend.hpp"
#include "gpu/collective/tcp/tcp_backend.hpp"
#include "gpu/host/host_device.hpp"

namespace troupe::apps {
namespace {

using core::Errc;
using core::Result;
using Counts = std::vector<std::size_t>;
using Posted = std::shared_ptr<gpu::OperationStatus>;

constexpr auto kMoeDeadline = std::chrono::seconds(60);
/// Elements of the expert that all tokens share: it takes about as long as the exchange.
constexpr std::size_t kSharedElements = 8;

std::vector<std::size_t> elements_of(const std::vector<std::int64_t>& rows, std::size_t width) {
  Counts counts;
  for (const auto count : rows) counts.push_back(static_cast<std::size_t>(count) * width);
  return counts;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// One rank: what a layer with experts does but for the experts themselves, which give back what they get.
/// Moves are those of apps/gpt/model/expert_layer.hpp: tokens are read where they lie, and rows of this
/// rank's own experts stay in their slots.
class MoeMember {
 public:
  static Result<std::unique_ptr<MoeMember>> create(const MoeBench& bench, gpu::Rendezvous& rendezvous,
                                                   int index) {
    auto member = std::unique_ptr<MoeMember>(new MoeMember(bench, index));
    member->owners_ = TRY(core::ExpertOwners::create(bench.experts, static_cast<std::size_t>(bench.ranks)));
    if (bench.collectives == "tcp") {
      member->backend_ = TRY(gpu::TcpBackend::open(rendezvous, {}));
    } else {
      member->backend_ = std::make_unique<gpu::SharedMemoryBackend>(rendezvous);
    }
    member->device_ = TRY(gpu::open_host_device());
    member->stream_ = TRY(member->device_->create_stream({.name = "bench"}));
    gpu::GroupOptions options{.job = fmt::format("bench-{}", getppid()),
                              .epoch = {1},
                              .name = "experts",
                              .members = {},
                              .self = {index}};
    for (int rank = 0; rank < bench.ranks; ++rank) options.members.push_back({rank});
    member->group_ = TRY(member->backend_->create_group(options));
    TRY(member->choose());
    return member;
  }

  std::size_t bytes() const { return slots_.size() * sizeof(float); }
  std::size_t own_bytes() const {
    return static_cast<std::size_t>(own_.count) * bench_.width * sizeof(float);
  }

  Result<void> dispatch() {
    TRY(counts());
    return exchange();
  }

  /// What an expert makes of the rows that are its rank's own goes to their slots.
  void experts() {
    const auto row = [&](std::int64_t index) { return index * static_cast<std::int64_t>(bench_.width); };
    std::copy_n(rows_.begin() + row(own_.first_received), row(own_.count),
                slots_.begin() + row(own_.first_slot));
  }

  Result<void> combine() {
    TRY(wait(TRY(begin(core::products_to_slots(own_, rank(), exchange_), rows_, slots_))));
    return sum();
  }

  Result<void> plain() {
    const core::RowMove there{exchange_.sent, exchange_.received, std::nullopt, std::nullopt};
    const core::RowMove back{exchange_.received, exchange_.sent, std::nullopt, std::nullopt};
    TRY(wait(TRY(begin(there, slots_, rows_))));
    return wait(TRY(begin(back, rows_, slots_)));
  }

  Result<void> counts() {
    TRY(exchange_counts());
    own_ = core::own_rows(owners_, rank(), dispatch_, exchange_);
    return {};
  }

  Result<void> exchange() { return wait(TRY(begin_dispatch())); }

  Result<void> sum() {
    core::combine<float>(dispatch_, bench_.choices, bench_.width, weights_, slots_, std::span(output_));
    return {};
  }

  Result<void> shared() {
    const std::size_t width = bench_.width;
    for (std::size_t token = 0; token < bench_.tokens; ++token) {
      std::array<float, kSharedElements> sums{};
      for (std::size_t i = 0; i < width; ++i) {
        for (std::size_t h = 0; h < kSharedElements; ++h)
          sums[h] += tokens_[token * width + i] * shared_weights_[i * kSharedElements + h];
      }
      std::copy(sums.begin(), sums.end(),
                shared_.begin() + static_cast<std::ptrdiff_t>(token * kSharedElements));
    }
    return {};
  }

  Result<void> both() {
    const auto rows = TRY(begin_dispatch());
    TRY(shared());
    return wait(rows);
  }

  /// From a common start.
  Result<double> time(const std::function<Result<void>()>& run) {
    TRY(post({}));
    const auto begin = std::chrono::steady_clock::now();
    TRY(run());
    return seconds_since(begin);
  }

  /// The experts give back what they get, so that each token comes to the sum of its weights times itself.
  Result<void> check() {
    std::fill(output_.begin(), output_.end(), 0.0F);
    TRY(dispatch());
    experts();
    TRY(combine());
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      if (std::abs(output_[i] - tokens_[i]) <= 1e-5F * std::abs(tokens_[i])) continue;
      return core::fail(Errc::internal, "bench: element {} of a rank's tokens came back as {} instead of {}",
                        i, output_[i], tokens_[i]);
    }
    return {};
  }

 private:
  MoeMember(const MoeBench& bench, int index) : bench_(bench), index_(index) {}

  Result<void> choose() {
    const auto [tokens, width, experts, choices] =
        std::array{bench_.tokens, bench_.width, bench_.experts, bench_.choices};
    const core::RouterOptions router{.experts = experts, .choices = choices, .score_before_choice = false};
    TRY(core::validate(router));
    const core::CounterRandom random(static_cast<std::uint64_t>(index_), "bench moe");
    std::vector<float> logits(tokens * experts);
    for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = random.normal(i);
    tokens_.resize(tokens * width);
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      tokens_[i] = 1.0F + static_cast<float>((i + 131 * rank()) % 997);
    output_.resize(tokens_.size());
    std::vector<std::int32_t> chosen(tokens * choices);
    weights_.resize(chosen.size());
    core::route<float>(router, logits, {}, {chosen, weights_});
    dispatch_ = core::dispatch<float>(experts, chosen, weights_);
    slots_.resize(static_cast<std::size_t>(dispatch_.slots()) * width);
    counts_.resize(experts * static_cast<std::size_t>(bench_.ranks));
    TRY(this->counts());
    rows_.resize(static_cast<std::size_t>(exchange_.received_rows()) * width);
    shared_.resize(tokens * kSharedElements);
    shared_weights_.assign(width * kSharedElements, 0.5F);
    return {};
  }

  Result<void> exchange_counts() {
    std::vector<std::int64_t> own;
    for (std::size_t expert = 0; expert < bench_.experts; ++expert) own.push_back(dispatch_.count(expert));
    gpu::Operation all{.kind = gpu::OperationKind::all_gather};
    all.dtype = core::DType::i64;
    all.input = gpu::view_of(std::span<const std::int64_t>(own));
    all.output = gpu::view_of(std::span(counts_));
    TRY(post(std::move(all)));
    std::vector<std::vector<std::int64_t>> of_ranks;
    for (std::size_t first = 0; first < counts_.size(); first += bench_.experts) {
      const auto begin = counts_.begin() + static_cast<std::ptrdiff_t>(first);
      of_ranks.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(bench_.experts));
    }
    const auto most = static_cast<std::int64_t>(bench_.tokens * bench_.choices) * bench_.ranks;
    exchange_ = TRY(core::plan_exchange(owners_, static_cast<std::size_t>(index_), of_ranks, most));
    return {};
  }

  std::size_t rank() const { return static_cast<std::size_t>(index_); }

  Result<Posted> begin_dispatch() {
    return begin(core::tokens_to_products(dispatch_, bench_.choices, exchange_), tokens_, rows_);
  }

  Result<Posted> begin(core::RowMove rows, const std::vector<float>& input, std::vector<float>& output) {
    gpu::Operation move{.kind = gpu::OperationKind::all_to_all};
    move.input_counts = elements_of(rows.sent, bench_.width);
    move.output_counts = elements_of(rows.taken, bench_.width);
    move.input = gpu::view_of(std::span(input));
    move.output = gpu::view_of(std::span(output));
    move.rows = {bench_.width, std::move(rows.input), std::move(rows.output)};
    return group_->post(std::move(move), stream_.get());
  }

  Result<void> post(gpu::Operation operation) {
    return wait(TRY(group_->post(std::move(operation), stream_.get())));
  }

  Result<void> wait(const Posted& posted) {
    TRY(stream_->synchronize(kMoeDeadline * 2));
    return *posted->result();
  }

  MoeBench bench_;
  int index_;
  core::ExpertOwners owners_;
  std::unique_ptr<gpu::Device> device_;
  std::unique_ptr<gpu::CollectiveBackend> backend_;
  gpu::Stream stream_;
  std::unique_ptr<gpu::Group> group_;
  core::Dispatch dispatch_;
  core::ExpertExchange exchange_;
  core::OwnRows own_;
  std::vector<std::int64_t> counts_;  // of all ranks
  std::vector<float> tokens_, output_, weights_, slots_, rows_;
  std::vector<float> shared_, shared_weights_;
};

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Result<void> run_moe_member(const MoeBench& bench, const std::filesystem::path& meeting_place, int index,
                            FILE* report) {
  gpu::FileRendezvous rendezvous(meeting_place);
  const auto member = TRY(MoeMember::create(bench, rendezvous, index));
  TRY(member->check());
  using Run = std::function<Result<void>()>;
  const std::array<Run, 8> runs{[&] { return member->dispatch(); }, [&] { return member->combine(); },
                                [&] { return member->plain(); },    [&] { return member->counts(); },
                                [&] { return member->sum(); },      [&] { return member->shared(); },
                                [&] { return member->both(); },     [&] { return member->exchange(); }};
  std::array<std::vector<double>, 8> seconds;
  // In turn, so that what else runs on the machine falls on all of them.
  for (int repeat = 0; repeat < bench.repeats; ++repeat) {
    for (std::size_t i = 0; i < runs.size(); ++i) seconds[i].push_back(TRY(member->time(runs[i])));
  }
  TRY(member->check());
  if (report == nullptr) return {};
  fmt::print(report, "{} {}", member->bytes(), member->own_bytes());
  for (const auto& each : seconds) fmt::print(report, " {}", median_of(each));
  fmt::print(report, "\n");
  return {};
}

}  // namespace

double MoeTime::overlapped_share() const {
  const double hidden = shared_seconds + exchange_seconds - both_seconds;
  return std::clamp(hidden / std::min(shared_seconds, exchange_seconds), 0.0, 1.0);
}

Result<MoeTime> measure_moe(const MoeBench& bench) {
  TRY(core::ExpertOwners::create(bench.experts, static_cast<std::size_t>(bench.ranks)));
  TRY(core::validate(core::RouterOptions{.experts = bench.experts, .choices = bench.choices}));
  const auto directory = TRY(TemporaryDirectory::create());
  const auto report = directory.path() / "report";
  Children children;
  for (int index = 0; index < bench.ranks; ++index) {
    TRY(children.start([&, index] {
      FILE* const file = index == 0 ? std::fopen(report.c_str(), "w") : nullptr;
      const auto done = run_moe_member(bench, directory.path(), index, file);
      if (!done) say_error(fmt::format("bench: rank {}", index), done.error().message);
      if (file != nullptr) std::fclose(file);
      return done ? 0 : 1;
    }));
  }
  if (!children.wait())
    return core::fail(Errc::internal, "bench: a rank of {} failed; see above", bench.ranks);
  MoeTime time;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(report.c_str(), "r"), std::fclose);
  const bool is_read =
      file &&
      std::fscanf(file.get(), "%zu %zu %lf %lf %lf %lf %lf %lf %lf %lf", &time.bytes, &time.own_bytes,
                  &time.dispatch_seconds, &time.combine_seconds, &time.plain_seconds, &time.counts_seconds,
                  &time.sum_seconds, &time.shared_seconds, &time.both_seconds, &time.exchange_seconds) == 10;
  if (!is_read) return core::fail(Errc::io, "bench: cannot read {}", report.string());
  return time;
}

}  // namespace troupe::apps
