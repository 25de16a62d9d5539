// A thousand connections are a thousand file descriptors.
//   raise_open_files();    // once, at start
#pragma once

namespace nib {

// Raises this process's limit of open files to what the system allows it.
void raise_open_files();

}  // namespace nib
