#pragma once

#include <cstdio>
#include <string_view>

#include "core/result.hpp"

namespace troupe::posix {

/// Opens /dev/null in place of each of stdin, stdout and stderr that this process was started without. The
/// next files and pipes would otherwise get their numbers, and what is printed would go there. The first
/// thing in main().
void open_missing_standard_streams();

/// Prints what a program tells besides its work, which goes on where that cannot be written: a full disk, a
/// pipe without a reader. flush_standard_output() says so at the end.
void tell(std::FILE* to, std::string_view text);

/// Writes out what was printed to standard output. Errc::io: it could not be written, or something before it.
core::Result<void> flush_standard_output();

}  // namespace troupe::posix
