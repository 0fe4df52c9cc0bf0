#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "core/errors.hpp"
#include "core/interop/pickle.hpp"
#include "core/interop/pickle_opcodes.hpp"
#include "core/interop/pickle_parts.hpp"
#include "core/utf8.hpp"

namespace troupe::core {

/// Python's pickle machine without the ability to import or call anything.
class PickleMachine {
 public:
  PickleMachine(std::span<const std::byte> input, const PickleLimits& limits) : limits_(limits) {
    limits_.nodes = std::min(limits_.nodes, kFewNodes + input.size() / kBytesPerNode);
    document_.input_ = input;
    document_.slots_ = {{PickleKind::none, false, 0, 0},
                        {PickleKind::boolean, false, 0, 0},
                        {PickleKind::boolean, false, 0, 1},
                        {PickleKind::tuple, false, 0, 0}};
  }

  Result<PickleDocument> run();

 private:
  using Id = std::uint32_t;
  using Op = PickleOpcode;

  static constexpr std::size_t kFewNodes = 4096;
  static constexpr std::size_t kBytesPerNode = 2;
  // These are shared, because most pickles are full of them.
  static constexpr Id kNone = 0;
  static constexpr Id kFalse = 1;
  static constexpr Id kTrue = 2;
  static constexpr Id kEmptyTuple = 3;

  template <class... Args>
  tl::unexpected<Error> refuse(fmt::format_string<Args...> format, Args&&... args) const {
    const std::uint8_t code = std::to_integer<std::uint8_t>(document_.input_[opcode_at_]);
    return fail(Errc::corrupt, "pickle: {} (0x{:02x}) at byte {}: {}", pickle_opcode_name(code), code,
                opcode_at_, fmt::format(format, std::forward<Args>(args)...));
  }

  Result<void> execute(Op op);
  Result<void> execute_number(Op op);
  Result<void> execute_text(Op op);
  Result<void> execute_container(Op op);
  Result<void> execute_memo(Op op);
  Result<void> execute_object(Op op);

  /// A little-endian number of this many bytes.
  Result<std::uint64_t> number(std::size_t bytes);
  Result<void> text_of(PickleKind kind, std::size_t length_bytes);
  Result<Id> line();
  Result<void> long_integer();

  Result<void> push_new(PickleKind kind, std::uint64_t payload, std::uint32_t size = 0);
  Result<Id> make(PickleKind kind, std::uint64_t payload, std::uint32_t size = 0);
  Result<void> growing(PickleKind kind);
  /// Appends the stack entries from `first` on to the parts of a list, set or dict.
  Result<void> append(Id target, std::size_t first);
  /// For an object, with room for items and state.
  std::uint64_t all_parts_of(Id object);
  /// The number of entries that may be popped without reaching below the innermost mark.
  std::size_t available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }
  Result<void> need(std::size_t count) const;
  Id pop();
  /// Removes the innermost mark and returns the stack's size below it.
  Result<std::size_t> pop_mark();
  /// Makes one tuple of the top `stack_.size() - first` entries.
  Result<void> tuple_from(std::size_t first);
  /// Adds the entries from `first` on to the container or object below them.
  Result<void> extend(std::size_t first, PickleKind kind);
  Result<void> object(bool is_new);
  Result<void> build();
  Result<void> remember(std::uint64_t index);
  Result<void> recall(std::uint64_t index);

  PickleLimits limits_;
  PickleDocument document_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  std::deque<Id> stack_;
  std::deque<Id> marks_;
  std::deque<Id> memo_;
};

Result<PickleDocument> PickleMachine::run() {
  const auto& input = document_.input_;
  if (input.size() > limits_.bytes) {
    return fail(Errc::corrupt, "pickle: {} bytes, at most {} are read", input.size(), limits_.bytes);
  }
  if (input.size() < 2 || input[0] != std::byte{0x80} || input[1] < std::byte{2} || input[1] > std::byte{5}) {
    return fail(Errc::corrupt, "pickle: it must begin with PROTO (0x80) and a protocol from 2 to 5");
  }
  at_ = 2;
  while (at_ < input.size()) {
    opcode_at_ = at_++;
    const auto op = static_cast<Op>(input[opcode_at_]);
    if (op == Op::stop) {
      if (stack_.size() != 1 || !marks_.empty()) {
        return refuse("one value must be left, there are {}", stack_.size());
      }
      if (at_ != input.size()) return refuse("{} bytes follow the end", input.size() - at_);
      document_.root_ = stack_.back();
      TRY(document_.check_graph(limits_.depth));
      return std::move(document_);
    }
    TRY(execute(op));
  }
  return fail(Errc::corrupt, "pickle: cut short, {} bytes do not end with STOP", input.size());
}

Result<void> PickleMachine::execute(Op op) {
  switch (op) {
    case Op::none:
      stack_.push_back(kNone);
      return {};
    case Op::newtrue:
      stack_.push_back(kTrue);
      return {};
    case Op::newfalse:
      stack_.push_back(kFalse);
      return {};
    case Op::mark:
      marks_.push_back(static_cast<Id>(stack_.size()));
      return {};
    case Op::pop:
      if (available() > 0) {
        pop();
      } else {
        TRY(pop_mark());
      }
      return {};
    case Op::frame: {
      const std::uint64_t bytes = TRY(number(8));
      const std::size_t left = document_.input_.size() - at_;
      if (bytes > left) return refuse("the frame has {} bytes, {} are left", bytes, left);
      return {};
    }
    case Op::binint:
    case Op::binint1:
    case Op::binint2:
    case Op::long1:
    case Op::binfloat:
      return execute_number(op);
    case Op::short_binunicode:
    case Op::binunicode:
    case Op::binunicode8:
    case Op::short_binbytes:
    case Op::binbytes:
      return execute_text(op);
    case Op::memoize:
    case Op::binput:
    case Op::long_binput:
    case Op::binget:
    case Op::long_binget:
      return execute_memo(op);
    case Op::global:
    case Op::stack_global:
    case Op::newobj:
    case Op::reduce:
    case Op::build:
    case Op::binpersid:
      return execute_object(op);
    default:
      return execute_container(op);
  }
}

Result<void> PickleMachine::execute_number(Op op) {
  switch (op) {
    case Op::binint1:
      return push_new(PickleKind::integer, TRY(number(1)));
    case Op::binint2:
      return push_new(PickleKind::integer, TRY(number(2)));
    case Op::binint: {
      const auto value = static_cast<std::int32_t>(TRY(number(4)));
      return push_new(PickleKind::integer, std::bit_cast<std::uint64_t>(std::int64_t{value}));
    }
    case Op::binfloat:
      // The only big-endian number.
      return push_new(PickleKind::real, __builtin_bswap64(TRY(number(8))));
    default:
      return long_integer();
  }
}

Result<void> PickleMachine::long_integer() {
  const std::uint64_t bytes = TRY(number(1));
  if (bytes > 8) {
    if (bytes > document_.input_.size() - at_) return refuse("cut short");
    TRY(push_new(PickleKind::long_integer, at_, static_cast<std::uint32_t>(bytes)));
    at_ += bytes;
    return {};
  }
  std::uint64_t value = TRY(number(bytes));
  if (bytes > 0 && bytes < 8 && ((value >> (8 * bytes - 1)) & 1U) != 0)
    value |= ~std::uint64_t{0} << (8 * bytes);
  return push_new(PickleKind::integer, value);
}

Result<void> PickleMachine::execute_text(Op op) {
  switch (op) {
    case Op::short_binunicode:
      return text_of(PickleKind::text, 1);
    case Op::binunicode:
      return text_of(PickleKind::text, 4);
    case Op::binunicode8:
      return text_of(PickleKind::text, 8);
    case Op::short_binbytes:
      return text_of(PickleKind::bytes, 1);
    default:
      return text_of(PickleKind::bytes, 4);
  }
}

Result<void> PickleMachine::execute_memo(Op op) {
  switch (op) {
    case Op::memoize:
      return remember(memo_.size());
    case Op::binput:
      return remember(TRY(number(1)));
    case Op::long_binput:
      return remember(TRY(number(4)));
    case Op::binget:
      return recall(TRY(number(1)));
    default:
      return recall(TRY(number(4)));
  }
}

Result<void> PickleMachine::execute_container(Op op) {
  switch (op) {
    case Op::empty_list:
      return growing(PickleKind::list);
    case Op::empty_dict:
      return growing(PickleKind::dict);
    case Op::empty_set:
      return growing(PickleKind::set);
    case Op::empty_tuple:
      stack_.push_back(kEmptyTuple);
      return {};
    case Op::tuple:
      return tuple_from(TRY(pop_mark()));
    case Op::tuple1:
    case Op::tuple2:
    case Op::tuple3: {
      const auto size = static_cast<std::size_t>(op) - static_cast<std::size_t>(Op::tuple1) + 1;
      TRY(need(size));
      return tuple_from(stack_.size() - size);
    }
    case Op::append:
      TRY(need(2));
      return extend(stack_.size() - 1, PickleKind::list);
    case Op::setitem:
      TRY(need(3));
      return extend(stack_.size() - 2, PickleKind::dict);
    case Op::appends:
      return extend(TRY(pop_mark()), PickleKind::list);
    case Op::setitems:
      return extend(TRY(pop_mark()), PickleKind::dict);
    case Op::additems:
      return extend(TRY(pop_mark()), PickleKind::set);
    default:
      return refuse("not one of the opcodes that checkpoints use; the file is damaged or not a checkpoint");
  }
}

Result<void> PickleMachine::execute_object(Op op) {
  switch (op) {
    case Op::global: {
      const Id module = TRY(line());
      const Id name = TRY(line());
      document_.parts_.insert(document_.parts_.end(), {module, name});
      return push_new(PickleKind::global, document_.parts_.size() - 2, 2);
    }
    case Op::stack_global: {
      TRY(need(2));
      const Id name = pop();
      const Id module = pop();
      if (document_.slots_[module].kind != PickleKind::text ||
          document_.slots_[name].kind != PickleKind::text) {
        return refuse("a global is named by two texts");
      }
      document_.parts_.insert(document_.parts_.end(), {module, name});
      return push_new(PickleKind::global, document_.parts_.size() - 2, 2);
    }
    case Op::newobj:
      return object(true);
    case Op::reduce:
      return object(false);
    case Op::build:
      return build();
    default: {
      TRY(need(1));
      document_.parts_.push_back(pop());
      return push_new(PickleKind::persistent, document_.parts_.size() - 1, 1);
    }
  }
}

Result<std::uint64_t> PickleMachine::number(std::size_t bytes) {
  if (bytes > document_.input_.size() - at_) return refuse("cut short");
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    value |= std::to_integer<std::uint64_t>(document_.input_[at_ + i]) << (8 * i);
  }
  at_ += bytes;
  return value;
}

Result<void> PickleMachine::text_of(PickleKind kind, std::size_t length_bytes) {
  const std::uint64_t length = TRY(number(length_bytes));
  const std::size_t left = document_.input_.size() - at_;
  if (length > left || length > std::numeric_limits<std::uint32_t>::max()) {
    return refuse("{} bytes of {}, {} are left", length, name_of(kind), left);
  }
  const auto* begin = reinterpret_cast<const char*>(document_.input_.data()) + at_;
  if (kind == PickleKind::text && !is_utf8({begin, length})) return refuse("its text is not UTF-8");
  TRY(push_new(kind, at_, static_cast<std::uint32_t>(length)));
  at_ += length;
  return {};
}

Result<PickleMachine::Id> PickleMachine::line() {
  // Names of modules and classes are shorter.
  constexpr std::size_t kLongest = 1024;
  const auto rest = document_.input_.subspan(at_);
  const auto within = rest.first(std::min(rest.size(), kLongest));
  const auto end = std::find(within.begin(), within.end(), std::byte{'\n'});
  if (end == within.end()) return refuse("a name must end with a new line within {} bytes", kLongest);
  const auto length = static_cast<std::size_t>(end - within.begin());
  if (!is_utf8({reinterpret_cast<const char*>(within.data()), length})) return refuse("a name is not UTF-8");
  const Id id = TRY(make(PickleKind::text, at_, static_cast<std::uint32_t>(length)));
  at_ += length + 1;
  return id;
}

Result<PickleMachine::Id> PickleMachine::make(PickleKind kind, std::uint64_t payload, std::uint32_t size) {
  if (document_.slots_.size() >= limits_.nodes) {
    return refuse("more than {} values in {} bytes", limits_.nodes, document_.input_.size());
  }
  document_.slots_.push_back({kind, false, size, payload});
  return static_cast<Id>(document_.slots_.size() - 1);
}

Result<void> PickleMachine::push_new(PickleKind kind, std::uint64_t payload, std::uint32_t size) {
  stack_.push_back(TRY(make(kind, payload, size)));
  return {};
}

Result<void> PickleMachine::growing(PickleKind kind) {
  return push_new(kind, document_.parts_.size());
}

Result<void> PickleMachine::need(std::size_t count) const {
  if (available() < count) return refuse("it takes {} values, there are {}", count, available());
  return {};
}

PickleMachine::Id PickleMachine::pop() {
  const Id id = stack_.back();
  stack_.pop_back();
  return id;
}

Result<std::size_t> PickleMachine::pop_mark() {
  if (marks_.empty()) return refuse("it needs a MARK before it");
  const std::size_t first = marks_.back();
  marks_.pop_back();
  return first;
}

Result<void> PickleMachine::tuple_from(std::size_t first) {
  const std::size_t begin = document_.parts_.size();
  const auto size = static_cast<std::uint32_t>(stack_.size() - first);
  document_.parts_.insert(document_.parts_.end(), stack_.begin() + static_cast<std::ptrdiff_t>(first),
                          stack_.end());
  stack_.resize(first);
  return push_new(PickleKind::tuple, begin, size);
}

Result<void> PickleMachine::extend(std::size_t first, PickleKind kind) {
  if (first == (marks_.empty() ? 0 : marks_.back())) return refuse("there is no {} before it", name_of(kind));
  if (kind == PickleKind::dict && (stack_.size() - first) % 2 != 0) return refuse("a key has no value");
  Id target = stack_[first - 1];
  if (document_.slots_[target].kind == PickleKind::object) {
    const std::size_t place = all_parts_of(target) + kItemsPart;
    if (document_.parts_[place] == kNoPickleNode) {
      TRY(growing(kind));
      document_.parts_[place] = pop();
    }
    target = document_.parts_[place];
  }
  if (document_.slots_[target].kind != kind) {
    return refuse("it extends a {}, not a {}", name_of(kind), name_of(document_.slots_[target].kind));
  }
  return append(target, first);
}

Result<void> PickleMachine::append(Id target, std::size_t first) {
  auto& slot = document_.slots_[target];
  auto& parts = document_.parts_;
  const std::uint64_t more = stack_.size() - first;
  std::uint64_t begin = slot.payload & kBeginMask;
  std::uint64_t spare = slot.payload >> kBeginBits;
  if (more > std::numeric_limits<std::uint32_t>::max() - slot.size) return refuse("too many values in one");
  if (slot.size == 0) begin = parts.size();
  if (more > spare) {
    if (begin + slot.size + spare != parts.size()) {
      // Other data follows it. Room for as many parts again makes moves rare.
      const std::uint64_t moved = parts.size();
      for (std::uint64_t i = 0; i < slot.size; ++i) parts.push_back(parts[begin + i]);
      begin = moved;
      spare = std::min<std::uint64_t>(more + slot.size, kMostSpare);
      parts.resize(begin + slot.size + std::max(spare, more), kNoPickleNode);
      spare = std::max(spare, more);
    } else {
      parts.resize(begin + slot.size + more, kNoPickleNode);
      spare = more;
    }
  }
  for (std::uint64_t i = 0; i < more; ++i) parts[begin + slot.size + i] = stack_[first + i];
  stack_.resize(first);
  slot.size += static_cast<std::uint32_t>(more);
  slot.payload = begin | (spare - more) << kBeginBits;
  return {};
}

std::uint64_t PickleMachine::all_parts_of(Id object) {
  auto& slot = document_.slots_[object];
  auto& parts = document_.parts_;
  if (slot.size == kObjectParts) return slot.payload;
  const std::uint64_t moved = parts.size();
  for (std::size_t i = 0; i < kObjectParts; ++i)
    parts.push_back(i < slot.size ? parts[slot.payload + i] : kNoPickleNode);
  slot.payload = moved;
  slot.size = kObjectParts;
  return moved;
}

Result<void> PickleMachine::object(bool is_new) {
  TRY(need(2));
  const Id arguments = pop();
  const Id callable = pop();
  if (document_.slots_[arguments].kind != PickleKind::tuple) return refuse("the arguments must be a tuple");
  document_.parts_.insert(document_.parts_.end(), {callable, arguments});
  TRY(push_new(PickleKind::object, document_.parts_.size() - kCalledParts, kCalledParts));
  document_.slots_.back().is_new = is_new;
  return {};
}

Result<void> PickleMachine::build() {
  TRY(need(2));
  const Id state = pop();
  const Id target = stack_.back();
  if (document_.slots_[target].kind != PickleKind::object) {
    return refuse("a {} takes no state", name_of(document_.slots_[target].kind));
  }
  Id& place = document_.parts_[all_parts_of(target) + kStatePart];
  if (place != kNoPickleNode) return refuse("the object has its state already");
  place = state;
  return {};
}

Result<void> PickleMachine::remember(std::uint64_t index) {
  TRY(need(1));
  if (index > memo_.size()) return refuse("memo entry {} comes after {}", index, memo_.size());
  if (index >= limits_.memo) return refuse("more than {} memo entries", limits_.memo);
  if (index == memo_.size()) memo_.push_back(0);
  memo_[index] = stack_.back();
  return {};
}

Result<void> PickleMachine::recall(std::uint64_t index) {
  if (index >= memo_.size()) return refuse("memo entry {} of {}", index, memo_.size());
  stack_.push_back(memo_[index]);
  return {};
}

Result<PickleDocument> PickleDocument::parse(std::span<const std::byte> bytes, const PickleLimits& limits) {
  return PickleMachine(bytes, limits).run();
}

}  // namespace troupe::core
