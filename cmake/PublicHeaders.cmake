# What others may include, 25 headers at most: a file of the tree, and its name below include/troupe/.
set(TROUPE_PUBLIC_HEADERS
  core/boxes/box.hpp               core/boxes/box.hpp
  core/dtype.hpp                   core/dtype.hpp
  core/ids.hpp                     core/ids.hpp
  core/layout/buffer_layout.hpp    core/layout/buffer_layout.hpp
  core/result.hpp                  core/result.hpp
  core/version.hpp                 core/version.hpp
  actors/shell/caf_version.hpp     caf_version.hpp
)
