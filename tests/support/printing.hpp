#pragma once

#include <ostream>
#include <type_traits>

namespace troupe::core {

template <class Enum>
concept NamedEnum = std::is_enum_v<Enum> && requires(Enum value) {
  name_of(value);
};

/// GoogleTest prints enumerations of the core by their names.
template <NamedEnum Enum>
void PrintTo(const Enum& value, std::ostream* out) {
  *out << name_of(value);
}

}  // namespace troupe::core
