#pragma once

namespace troupe::posix {

/// Opens /dev/null in place of each of stdin, stdout and stderr that this process was started without. The
/// next files and pipes would otherwise get their numbers, and what is printed would go there. The first
/// thing in main().
void open_missing_standard_streams();

}  // namespace troupe::posix
