// What QEMU's machine lacks: p-states for four CPUs, and a power meter.
//
// P-states: the control register of CPU n is byte n of pc-testdev, at I/O port 0xE0 + n. State and
// control value count from 1, so that 0 means that nobody has written yet.
// Power: the meter's registers are 16 double words of reserved RAM at 0x20000000, which the host shares.
DefinitionBlock ("ssdt.aml", "SSDT", 2, "BALLST", "GUEST", 1)
{
    External (\_SB.CPUS.C000, ProcessorObj)
    External (\_SB.CPUS.C001, ProcessorObj)
    External (\_SB.CPUS.C002, ProcessorObj)
    External (\_SB.CPUS.C003, ProcessorObj)

    Scope (\_SB)
    {
        // MHz, mW, latencies in microseconds, control, status.
        Name (PSTA, Package ()
        {
            Package () { 2400, 9000, 10, 10, 1, 1 },
            Package () { 2200, 8000, 10, 10, 2, 2 },
            Package () { 2000, 7000, 10, 10, 3, 3 },
            Package () { 1800, 6000, 10, 10, 4, 4 },
            Package () { 1600, 5000, 10, 10, 5, 5 },
            Package () { 1400, 4000, 10, 10, 6, 6 },
            Package () { 1200, 3000, 10, 10, 7, 7 },
            Package () { 1000, 2500, 10, 10, 8, 8 },
            Package () { 800, 2000, 10, 10, 9, 9 }
        })
    }

    Scope (\_SB.CPUS.C000)
    {
        Name (_PCT, Package ()
        {
            ResourceTemplate () { Register (SystemIO, 8, 0, 0xE0, 1) },
            ResourceTemplate () { Register (SystemIO, 8, 0, 0xE0, 1) }
        })
        Method (_PSS) { Return (\_SB.PSTA) }
        Name (_PPC, 0)
        Name (_PSD, Package () { Package () { 5, 0, 0, 0xFD, 1 } })
    }
    Scope (\_SB.CPUS.C001)
    {
        Name (_PCT, Package ()
        {
            ResourceTemplate () { Register (SystemIO, 8, 0, 0xE1, 1) },
            ResourceTemplate () { Register (SystemIO, 8, 0, 0xE1, 1) }
        })
        Method (_PSS) { Return (\_SB.PSTA) }
        Name (_PPC, 0)
        Name (_PSD, Package () { Package () { 5, 0, 1, 0xFD, 1 } })
    }
    Scope (\_SB.CPUS.C002)
    {
        Name (_PCT, Package ()
        {
            ResourceTemplate () { Register (SystemIO, 8, 0, 0xE2, 1) },
            ResourceTemplate () { Register (SystemIO, 8, 0, 0xE2, 1) }
        })
        Method (_PSS) { Return (\_SB.PSTA) }
        Name (_PPC, 0)
        Name (_PSD, Package () { Package () { 5, 0, 2, 0xFD, 1 } })
    }
    Scope (\_SB.CPUS.C003)
    {
        Name (_PCT, Package ()
        {
            ResourceTemplate () { Register (SystemIO, 8, 0, 0xE3, 1) },
            ResourceTemplate () { Register (SystemIO, 8, 0, 0xE3, 1) }
        })
        Method (_PSS) { Return (\_SB.PSTA) }
        Name (_PPC, 0)
        Name (_PSD, Package () { Package () { 5, 0, 3, 0xFD, 1 } })
    }

    Device (\_SB.PMTR)
    {
        Name (_HID, "ACPI000D")
        Name (_UID, 0)
        OperationRegion (PWR, SystemMemory, 0x20000000, 0x40)
        Field (PWR, DWordAcc, NoLock, Preserve)
        {
            MW, 32,    // the draw, by the host
            CAP, 32,   // the cap, by the guest
            INTV, 32,  // the averaging interval, by the guest
            GONE, 32   // by the host: nonzero, and the meter answers "unknown"
        }
        Method (_PMC)
        {
            // Measures and caps; mW; input; 100 %; sampling time 20 ms; interval 10 to 10000 ms;
            // hysteresis; cap is configurable; 100 to 400 W.
            Return (Package () { 5, 0, 0, 100000, 20, 10, 10000, 0, 1, 100000, 400000, "guest", "1", "ballast" })
        }
        Method (_PMM)
        {
            If (GONE) { Return (0xFFFFFFFF) }
            Return (MW)
        }
        Method (_GAI) { Return (INTV) }
        Method (_PAI, 1) { INTV = Arg0 Return (0) }
        Method (_PTP, 2) { Return (0) }
        Method (_GHL) { Return (CAP) }
        Method (_SHL, 1) { CAP = Arg0 Return (0) }
        Name (_PMD, Package () {})
    }
}
