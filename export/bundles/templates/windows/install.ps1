# Sets this bundle up on a Snapdragon laptop and tries it: powershell -File install.ps1
# It needs Python 3.11 or later for ARM64.
$ErrorActionPreference = 'Stop'
Set-Location $PSScriptRoot
if ($env:PROCESSOR_ARCHITECTURE -ne 'ARM64') { Write-Error "this bundle is for ARM64, this is $env:PROCESSOR_ARCHITECTURE" }
foreach ($line in Get-Content SHA256SUMS) {
    $digest, $name = $line -split '  ', 2
    if ((Get-FileHash -Algorithm SHA256 $name).Hash -ne $digest) { Write-Error "$name is damaged: make the bundle again" }
}
python -m venv .venv
if ($LASTEXITCODE) { Write-Error 'python -m venv failed: install Python 3.11 or later for ARM64' }
.venv\Scripts\python -m pip install --quiet @RUNTIME@
if ($LASTEXITCODE) { Write-Error 'pip failed: see above' }
.venv\Scripts\python -m selftest.run
exit $LASTEXITCODE
