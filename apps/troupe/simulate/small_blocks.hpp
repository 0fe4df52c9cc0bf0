#pragma once

namespace troupe::apps {

/// From now on this thread keeps the small blocks that it frees, by their size, and takes them again for what
/// it allocates. malloc() keeps seven of each size: a simulation frees what thousands of ranks were doing,
/// and malloc() would join each block with its neighbours, which nobody has touched for long. What is kept
/// stays with the thread until the process ends.
void keep_small_blocks();

}  // namespace troupe::apps
