// Package vendortest runs coding agents, the real programs, against a daemon and a fake model (fakemodel), with the
// hooks that brokerctl setup writes. Its tests compare what the receipt of a message says with what the model was sent:
// a receipt never says more.
//
// The programs come from a folder that make vendors fills (VENDOR_PROGRAMS). Without it, the tests are skipped: make
// test downloads no coding agent. Nothing leaves the machine: the programs get a proxy that refuses every connection,
// and folders of their own.
package vendortest
