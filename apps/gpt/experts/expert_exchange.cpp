#include "apps/gpt/experts/expert_exchange.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

ExpertPeers::Counts bytes_of(const std::vector<std::int64_t>& rows, std::size_t row_bytes) {
  ExpertPeers::Counts counts;
  for (const auto count : rows) counts.push_back(static_cast<std::size_t>(count) * row_bytes);
  return counts;
}

template <class T>
Result<void> move_rows(const std::vector<std::int64_t>& sent, const std::vector<std::int64_t>& taken,
                       std::size_t width, ExpertPeers& peers, const T* input, T* output) {
  const auto given = bytes_of(sent, width * sizeof(T)), got = bytes_of(taken, width * sizeof(T));
  const auto total = [](const ExpertPeers::Counts& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  };
  return peers.begin_exchange({reinterpret_cast<const std::byte*>(input), total(given)}, given,
                              {reinterpret_cast<std::byte*>(output), total(got)}, got);
}

}  // namespace

Result<core::ExpertExchange> plan_rows(const ExpertConfig& config, std::size_t rows,
                                       const core::Dispatch& dispatch, ExpertPeers* peers) {
  CHECK((peers != nullptr) == (config.ranks > 1), "a pass over experts of other ranks has them as peers");
  std::vector<std::int64_t> own;
  for (std::size_t expert = 0; expert < config.count; ++expert) own.push_back(dispatch.count(expert));
  const auto counts =
      peers == nullptr ? std::vector<std::vector<std::int64_t>>{own} : TRY(peers->gather_counts(own));
  const auto most = static_cast<std::int64_t>(config.most_rows(rows));
  return core::plan_exchange(config.owners(), config.place, counts, most);
}

template <class T>
Result<void> send_rows(const core::ExpertExchange& exchange, std::size_t width, ExpertPeers& peers,
                       const T* slots, T* rows) {
  return move_rows(exchange.sent, exchange.received, width, peers, slots, rows);
}

template <class T>
Result<void> return_rows(const core::ExpertExchange& exchange, std::size_t width, ExpertPeers& peers,
                         const T* rows, T* slots) {
  return move_rows(exchange.received, exchange.sent, width, peers, rows, slots);
}

std::vector<std::int64_t> group_rows(core::ExpertExchange& exchange) {
  auto order = core::rows_by_expert(exchange);
  std::int64_t first = 0;
  for (auto& parts : exchange.products) {
    core::ExpertRows all{.source = 0, .first = first, .count = 0};
    for (const core::ExpertRows& part : parts) all.count += part.count;
    first += all.count;
    parts = {all};
  }
  return order;
}

template <class T>
void order_rows(std::span<const std::int64_t> order, std::size_t width, const T* from, T* to) {
  for (std::size_t i = 0; i < order.size(); ++i)
    std::copy_n(from + static_cast<std::size_t>(order[i]) * width, width, to + i * width);
}

template <class T>
void restore_rows(std::span<const std::int64_t> order, std::size_t width, const T* from, T* to) {
  for (std::size_t i = 0; i < order.size(); ++i)
    std::copy_n(from + i * width, width, to + static_cast<std::size_t>(order[i]) * width);
}

template void order_rows<float>(std::span<const std::int64_t>, std::size_t, const float*, float*);
template void order_rows<double>(std::span<const std::int64_t>, std::size_t, const double*, double*);
template void restore_rows<float>(std::span<const std::int64_t>, std::size_t, const float*, float*);
template void restore_rows<double>(std::span<const std::int64_t>, std::size_t, const double*, double*);
template Result<void> send_rows<float>(const core::ExpertExchange&, std::size_t, ExpertPeers&, const float*,
                                       float*);
template Result<void> send_rows<double>(const core::ExpertExchange&, std::size_t, ExpertPeers&, const double*,
                                        double*);
template Result<void> return_rows<float>(const core::ExpertExchange&, std::size_t, ExpertPeers&, const float*,
                                         float*);
template Result<void> return_rows<double>(const core::ExpertExchange&, std::size_t, ExpertPeers&,
                                          const double*, double*);

}  // namespace troupe::apps::gpt
