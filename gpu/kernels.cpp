#include "gpu/kernels.hpp"

#include <string_view>
#include <utility>

#include "gpu/copy_out.hpp"
#include "gpu/device_kernels.hpp"
#include "gpu/order/task_order.hpp"

namespace troupe::gpu {
namespace {

// Host and simulated streams run the synchronous form as the body of a task. Only this code distinguishes a
// device with its own memory.
template <class Body>
void enqueue(StreamView stream, std::string_view label, std::uint64_t bytes_touched, Body body) {
  stream->enqueue(label, {.bytes_touched = bytes_touched}, std::move(body));
}

template <class View, class Ranges>
std::vector<View> views_of(const Ranges& ranges) {
  std::vector<View> views;
  views.reserve(ranges.size());
  for (const auto& range : ranges) views.push_back(range.view);
  return views;
}

std::vector<ConstBufferView> views_of(const Slots& slots) {
  std::vector<ConstBufferView> views;
  for (const auto& run : slots.runs()) views.push_back(run.all.view);
  return views;
}

/// One term, which is where the sum belongs.
bool is_in_place(const TreeSum& sum) {
  return sum.slots.size() == 1 && sum.steps.empty() && sum.factor == 1.0F &&
         sum.slots[0].view.data == sum.output.view.data && sum.slots[0].dtype == sum.output.dtype;
}

std::uint64_t bytes_of(const ParameterStep& step) {
  return step.gradient.view.bytes + 2 * step.master.bytes + step.parameter.view.bytes + step.cleared.bytes;
}

}  // namespace

void copy(ConstBufferView source, BufferView destination, StreamView stream) {
  declare(*stream, "copy", {source}, {destination});
  if (auto* own = stream->kernels()) return own->copy(source, destination);
  enqueue(stream, "copy", source.bytes + destination.bytes, [=] { copy(source, destination); });
}

void copy_out(ConstBufferView source, BufferView destination, StreamView stream) {
  declare(*stream, "copy", {source}, {destination});
  if (auto* own = stream->kernels()) return own->copy(source, destination);
  enqueue(stream, "copy", source.bytes + destination.bytes, [=] { copy_out(source, destination); });
}

void zero(BufferView destination, StreamView stream) {
  declare(*stream, "zero", {}, {destination});
  if (auto* own = stream->kernels()) return own->zero(destination);
  enqueue(stream, "zero", destination.bytes, [=] { zero(destination); });
}

void pack(std::vector<ConstBufferView> ranges, BufferView flat, StreamView stream) {
  if (auto* order = stream->order()) order->task("pack", {ranges, {flat}});
  if (auto* own = stream->kernels()) return own->pack(ranges, flat);
  enqueue(stream, "pack", 2 * flat.bytes, [ranges = std::move(ranges), flat] { pack(ranges, flat); });
}

void unpack(ConstBufferView flat, std::vector<BufferView> ranges, StreamView stream) {
  if (auto* order = stream->order()) order->task("unpack", {{flat}, ranges});
  if (auto* own = stream->kernels()) return own->unpack(flat, ranges);
  enqueue(stream, "unpack", 2 * flat.bytes, [ranges = std::move(ranges), flat] { unpack(flat, ranges); });
}

void pack(std::vector<ConstElements> ranges, Elements flat, StreamView stream) {
  if (auto* order = stream->order()) order->task("pack", {views_of<ConstBufferView>(ranges), {flat.view}});
  if (auto* own = stream->kernels()) return own->pack(ranges, flat);
  std::uint64_t bytes = flat.view.bytes;
  for (const ConstElements& range : ranges) bytes += range.view.bytes;
  enqueue(stream, "pack", bytes, [ranges = std::move(ranges), flat] { pack(ranges, flat); });
}

void unpack(ConstElements flat, std::vector<Elements> ranges, StreamView stream) {
  if (auto* order = stream->order()) order->task("unpack", {{flat.view}, views_of<BufferView>(ranges)});
  if (auto* own = stream->kernels()) return own->unpack(flat, ranges);
  std::uint64_t bytes = flat.view.bytes;
  for (const Elements& range : ranges) bytes += range.view.bytes;
  enqueue(stream, "unpack", bytes, [ranges = std::move(ranges), flat] { unpack(flat, ranges); });
}

void fill(Elements destination, float value, StreamView stream) {
  declare(*stream, "fill", {}, {destination.view});
  if (auto* own = stream->kernels()) return own->fill(destination, value);
  enqueue(stream, "fill", destination.view.bytes, [=] { fill(destination, value); });
}

void cast(ConstElements source, Elements destination, StreamView stream) {
  declare(*stream, "cast", {source.view}, {destination.view});
  if (auto* own = stream->kernels()) return own->cast(source, destination);
  enqueue(stream, "cast", source.view.bytes + destination.view.bytes, [=] { cast(source, destination); });
}

void round_to(core::DType narrow, Elements values, StreamView stream) {
  declare(*stream, "round", {}, {values.view});
  if (auto* own = stream->kernels()) return own->round_to(narrow, values);
  enqueue(stream, "round", 2 * values.view.bytes, [=] { round_to(narrow, values); });
}

void round_to_mx(core::DType element, ConstElements source, Elements destination, StreamView stream) {
  declare(*stream, "round_to_mx", {source.view}, {destination.view});
  if (auto* own = stream->kernels()) return own->round_to_mx(element, source, destination);
  enqueue(stream, "round_to_mx", source.view.bytes + destination.view.bytes,
          [=] { round_to_mx(element, source, destination); });
}

void pack_mx(core::DType element, ConstElements source, BufferView packed, StreamView stream) {
  declare(*stream, "pack_mx", {source.view}, {packed});
  if (auto* own = stream->kernels()) return own->pack_mx(element, source, packed);
  enqueue(stream, "pack_mx", source.view.bytes + packed.bytes, [=] { pack_mx(element, source, packed); });
}

void unpack_mx(core::DType element, ConstBufferView packed, std::size_t part, Elements destination,
               StreamView stream) {
  declare(*stream, "unpack_mx", {packed}, {destination.view});
  if (auto* own = stream->kernels()) return own->unpack_mx(element, packed, part, destination);
  enqueue(stream, "unpack_mx", packed.bytes + destination.view.bytes,
          [=] { unpack_mx(element, packed, part, destination); });
}

void scale(Elements values, float factor, StreamView stream) {
  declare(*stream, "scale", {}, {values.view});
  if (auto* own = stream->kernels()) return own->scale(values, factor);
  enqueue(stream, "scale", 2 * values.view.bytes, [=] { scale(values, factor); });
}

void accumulate(ConstElements source, Elements destination, StreamView stream) {
  declare(*stream, "accumulate", {source.view}, {destination.view});
  if (auto* own = stream->kernels()) return own->accumulate(source, destination);
  const std::uint64_t bytes = source.view.bytes + 2 * destination.view.bytes;
  enqueue(stream, "accumulate", bytes, [=] { accumulate(source, destination); });
}

void tree_sum(TreeSum sum, StreamView stream) {
  if (sum.output.view.bytes == 0 || is_in_place(sum)) return;
  if (auto* order = stream->order()) order->task("tree_sum", {views_of(sum.slots), {sum.output.view}});
  if (auto* own = stream->kernels()) return own->tree_sum(sum);
  std::uint64_t bytes = sum.output.view.bytes;
  for (const auto& run : sum.slots.runs()) bytes += run.all.view.bytes;
  enqueue(stream, "tree_sum", bytes, [sum = std::move(sum)] { tree_sum(sum); });
}

void add_squares(ConstElements values, BufferView sum, StreamView stream) {
  declare(*stream, "add_squares", {values.view}, {sum});
  if (auto* own = stream->kernels()) return own->add_squares(values, sum);
  enqueue(stream, "add_squares", values.view.bytes, [=] { add_squares(values, sum); });
}

void add_square_sums(ConstBufferView parts, BufferView into, StreamView stream) {
  declare(*stream, "add_square_sums", {parts}, {into});
  if (auto* own = stream->kernels()) return own->add_square_sums(parts, into);
  enqueue(stream, "add_square_sums", parts.bytes + into.bytes, [=] { add_square_sums(parts, into); });
}

void raise_to_largest(ConstElements values, BufferView largest, StreamView stream) {
  declare(*stream, "raise_to_largest", {values.view}, {largest});
  if (auto* own = stream->kernels()) return own->raise_to_largest(values, largest);
  enqueue(stream, "raise_to_largest", values.view.bytes, [=] { raise_to_largest(values, largest); });
}

void sgd_step(const SgdOptions& options, const ParameterStep& parameter, BufferView momentum,
              StreamView stream) {
  declare(*stream, "sgd_step", {parameter.gradient.view},
          {parameter.master, parameter.parameter.view, parameter.cleared, momentum});
  if (auto* own = stream->kernels()) return own->sgd_step(options, parameter, momentum);
  const std::uint64_t bytes = bytes_of(parameter) + 2 * momentum.bytes;
  enqueue(stream, "sgd_step", bytes, [=] { sgd_step(options, parameter, momentum); });
}

void adam_step(const AdamOptions& options, std::int64_t step, const ParameterStep& parameter,
               AdamMoments moments, StreamView stream) {
  declare(*stream, "adam_step", {parameter.gradient.view},
          {parameter.master, parameter.parameter.view, parameter.cleared, moments.first, moments.second});
  if (auto* own = stream->kernels()) return own->adam_step(options, step, parameter, moments);
  const std::uint64_t bytes = bytes_of(parameter) + 2 * (moments.first.bytes + moments.second.bytes);
  enqueue(stream, "adam_step", bytes, [=] { adam_step(options, step, parameter, moments); });
}

void lion_step(const LionOptions& options, const ParameterStep& parameter, BufferView moment,
               StreamView stream) {
  declare(*stream, "lion_step", {parameter.gradient.view},
          {parameter.master, parameter.parameter.view, parameter.cleared, moment});
  if (auto* own = stream->kernels()) return own->lion_step(options, parameter, moment);
  const std::uint64_t bytes = bytes_of(parameter) + 2 * moment.bytes;
  enqueue(stream, "lion_step", bytes, [=] { lion_step(options, parameter, moment); });
}

void muon_step(const MuonOptions& options, MatrixShape shape, const ParameterStep& parameter,
               BufferView momentum, BufferView scratch, StreamView stream) {
  declare(*stream, "muon_step", {parameter.gradient.view},
          {parameter.master, parameter.parameter.view, parameter.cleared, momentum, scratch});
  if (auto* own = stream->kernels()) return own->muon_step(options, shape, parameter, momentum, scratch);
  const std::uint64_t bytes = bytes_of(parameter) + 2 * momentum.bytes +
                              static_cast<std::uint64_t>(options.steps) * 2 * muon_scratch_bytes(shape);
  enqueue(stream, "muon_step", bytes, [=] { muon_step(options, shape, parameter, momentum, scratch); });
}

}  // namespace troupe::gpu
