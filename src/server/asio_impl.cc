// The non-template halves of Asio and Beast, compiled once for the files that use them.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
