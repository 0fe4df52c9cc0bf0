#pragma once

#include <cstdint>
#include <string_view>

namespace troupe::core {

/// The opcodes of pickles that checkpoints use; see Python's pickletools.
enum class PickleOpcode : std::uint8_t {
  mark = '(',
  stop = '.',
  pop = '0',
  binbytes = 'B',
  short_binbytes = 'C',
  binfloat = 'G',
  binint = 'J',
  binint1 = 'K',
  binint2 = 'M',
  none = 'N',
  binpersid = 'Q',
  reduce = 'R',
  binunicode = 'X',
  append = 'a',
  build = 'b',
  global = 'c',
  appends = 'e',
  binget = 'h',
  long_binget = 'j',
  binput = 'q',
  long_binput = 'r',
  setitem = 's',
  tuple = 't',
  setitems = 'u',
  empty_tuple = ')',
  empty_list = ']',
  empty_dict = '}',
  proto = 0x80,
  newobj = 0x81,
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  newtrue = 0x88,
  newfalse = 0x89,
  long1 = 0x8a,
  short_binunicode = 0x8c,
  binunicode8 = 0x8d,
  empty_set = 0x8f,
  additems = 0x90,
  stack_global = 0x93,
  memoize = 0x94,
  frame = 0x95,
};

/// Python's name of an opcode; "no opcode" for other bytes.
std::string_view pickle_opcode_name(std::uint8_t code) noexcept;

}  // namespace troupe::core
